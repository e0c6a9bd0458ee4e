# Decides LMS_HAS_CUDA and makes LMS::cudart: the runtime's headers, and the very libcudart that
# PyTorch loads, linked dynamically (two copies of the runtime in one process would not share
# streams). No compiler of CUDA is needed: LMS has no kernels.
#
# With a PyTorch: its CUDA, found beside it (the nvidia packages of pip, or libtorch/lib), the
# headers else from a CUDA toolkit. With none: a CUDA toolkit.
set(LMS_HAS_CUDA OFF)
set(lms_cudart "")
set(lms_cuda_include "")
set(why "switched off")

if(NOT LMS_CUDA STREQUAL "OFF" AND NOT (LMS_CUDA STREQUAL "AUTO" AND LMS_SANITIZE))
  if(TorchSDK_FOUND AND NOT TorchSDK_CUDA_VERSION)
    set(why "this PyTorch has none")
  else()
    find_package(CUDAToolkit QUIET)
    set(lms_cuda_include ${CUDAToolkit_INCLUDE_DIRS})
    if(TorchSDK_FOUND)
      string(REGEX MATCH "^[0-9]+" major "${TorchSDK_CUDA_VERSION}")
      set(beside "")
      foreach(folder IN LISTS TorchSDK_SITE)
        list(APPEND beside "${folder}/nvidia/cu${major}" "${folder}/nvidia/cuda_runtime")
      endforeach()
      foreach(folder IN LISTS beside)
        file(GLOB found "${folder}/lib/libcudart.so.${major}")
        list(APPEND lms_cudart ${found})
      endforeach()
      file(GLOB found "${TorchSDK_DIR}/lib/libcudart*.so*")
      list(APPEND lms_cudart ${found} ${CUDA_cudart_LIBRARY})
      set(include_beside "")
      foreach(folder IN LISTS beside)
        if(EXISTS "${folder}/include")
          list(APPEND include_beside "${folder}/include")
        endif()
      endforeach()
      list(PREPEND lms_cuda_include ${include_beside})
    else()
      set(lms_cudart ${CUDA_cudart_LIBRARY})
    endif()

    if(lms_cudart)
      list(GET lms_cudart 0 lms_cudart)
      include(CheckCXXSourceCompiles)
      set(CMAKE_REQUIRED_INCLUDES ${lms_cuda_include})
      unset(LMS_CUDA_HEADERS_WORK CACHE)
      check_cxx_source_compiles(
        "#include <cuda_runtime_api.h>\nint main() { return cudaSuccess; }" LMS_CUDA_HEADERS_WORK)
      unset(CMAKE_REQUIRED_INCLUDES)
      set(LMS_HAS_CUDA ${LMS_CUDA_HEADERS_WORK})
      set(why "cuda_runtime_api.h and its crt/ headers were not found or do not compile; \
'pip install \"cuda-toolkit[crt]\"' brings them")
    else()
      set(why "no libcudart was found")
    endif()
  endif()
endif()

if(LMS_HAS_CUDA)
  message(STATUS "CUDA backend: ${lms_cudart}")
  add_library(LMS::cudart INTERFACE IMPORTED)
  target_include_directories(LMS::cudart SYSTEM INTERFACE ${lms_cuda_include})
  target_link_libraries(LMS::cudart INTERFACE "${lms_cudart}")
else()
  message(STATUS "CUDA backend: none (${why})")
  if(LMS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LMS_CUDA=ON, but there is no CUDA runtime: ${why}")
  elseif(LMS_CUDA STREQUAL "AUTO" AND TorchSDK_CUDA_VERSION)
    message(
      FATAL_ERROR
        "This PyTorch has CUDA ${TorchSDK_CUDA_VERSION}, but LMS cannot be built for it: ${why}. "
        "To build for the CPU alone, set LMS_CUDA=OFF.")
  endif()
endif()
