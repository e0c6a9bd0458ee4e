# LMS_SANITIZE, a list such as "address;undefined" or "address,undefined", as flags of every target
# that links lms_sanitize.
add_library(lms_sanitize INTERFACE)

string(REPLACE "," ";" lms_sanitizers "${LMS_SANITIZE}")
if(lms_sanitizers)
  foreach(sanitizer IN LISTS lms_sanitizers)
    if(NOT sanitizer MATCHES "^(address|thread|undefined)$")
      message(FATAL_ERROR "LMS_SANITIZE: '${sanitizer}' is none of address, thread, undefined")
    endif()
  endforeach()
  if("thread" IN_LIST lms_sanitizers AND "address" IN_LIST lms_sanitizers)
    message(FATAL_ERROR "LMS_SANITIZE: thread and address exclude each other")
  endif()
  if(NOT LMS_TORCH STREQUAL "OFF")
    message(FATAL_ERROR "LMS_SANITIZE is for the core alone: add -DLMS_TORCH=OFF")
  endif()
  list(JOIN lms_sanitizers "," flags)
  # Instrumented, GCC 12's std::regex reads what is not set, it says.
  target_compile_options(
    lms_sanitize INTERFACE -fsanitize=${flags} -fno-omit-frame-pointer -g1 -Wno-maybe-uninitialized)
  target_link_options(lms_sanitize INTERFACE -fsanitize=${flags})
  if("undefined" IN_LIST lms_sanitizers)
    target_compile_options(lms_sanitize INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
