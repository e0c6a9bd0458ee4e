# Targets of the core, all alike.
#
#   lms_add_library(<name> [GLOB [FOLDERS <folder>...]] [SOURCES <file>...] [HEADERS <file>...]
#                   [DEPS <target>...])
#
# A static, position-independent library <name>, alias LMS::<name without lms_>. GLOB takes the
# *.cpp and *.h of the current folder, and of the FOLDERS in it. With no source it is an INTERFACE library. Includes are
# written relative to src/ ("base/bytes.h"), the public API relative to include/ (<lms/...>).
include_guard(GLOBAL)
find_package(Threads REQUIRED)

# LMS_UNITY: sources are compiled several at once, lms_target_defaults(<target> [UNITY <sources>]) of
# them (8; 0: all). Precompiled headers are then more work than they save (lms_precompile).
#
# A file whose names would clash with its neighbours' says so: SKIP_UNITY_BUILD_INCLUSION.
function(lms_target_defaults target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "UNITY" "")
  if(NOT DEFINED arg_UNITY)
    set(arg_UNITY 8)
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON UNITY_BUILD ${LMS_UNITY}
               UNITY_BUILD_BATCH_SIZE ${arg_UNITY})
  # Designated initialisers leave fields to their defaults on purpose.
  target_compile_options(
    ${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers $<$<BOOL:${LMS_WERROR}>:-Werror>)
  # Nobody puts functions of his own in the place of ours: they may be inlined.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
  endif()
  # A package does not tell where it was built.
  if(DEFINED SKBUILD)
    target_compile_options(${target} PRIVATE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
  endif()
  # GCC 12 misreads sums of strings where it optimises much (bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  # GCC takes every type of an unnamed namespace for a mistake where the file is included.
  if(LMS_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# target_precompile_headers, but with LMS_UNITY nothing.
function(lms_precompile target)
  if(NOT LMS_UNITY)
    target_precompile_headers(${target} ${ARGN})
  endif()
endfunction()

function(lms_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GLOB" "" "FOLDERS;SOURCES;HEADERS;DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "lms_add_library(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(arg_GLOB)
    foreach(folder IN ITEMS . LISTS arg_FOLDERS)
      file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
      file(GLOB headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.h")
      list(APPEND arg_SOURCES ${sources})
      list(APPEND arg_HEADERS ${headers})
    endforeach()
  endif()

  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES} ${arg_HEADERS})
    lms_target_defaults(${name})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    target_compile_features(${name} INTERFACE cxx_std_20)
    set(scope INTERFACE)
  endif()
  string(REGEX REPLACE "^lms_" "" short "${name}")
  add_library(LMS::${short} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
  target_include_directories(
    ${name}
    ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>"
             "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/lms/core>")
  target_link_libraries(
    ${name} ${scope} ${arg_DEPS} Threads::Threads $<BUILD_INTERFACE:lms_sanitize>)
  set_property(GLOBAL APPEND PROPERTY LMS_CORE_TARGETS ${name})
  set_property(GLOBAL APPEND PROPERTY LMS_CORE_HEADERS ${arg_HEADERS})
endfunction()

# lms_core: every core library in one, for tests and for users of the C++ core.
function(lms_add_core)
  get_property(targets GLOBAL PROPERTY LMS_CORE_TARGETS)
  add_library(lms_core INTERFACE)
  add_library(LMS::core ALIAS lms_core)
  set_target_properties(lms_core PROPERTIES EXPORT_NAME core)
  target_link_libraries(lms_core INTERFACE ${targets})
endfunction()
