# The parts of an installed PyTorch that LMS compiles and links against, found without importing it
# and without PyTorch's own CMake package (which wants a CUDA toolkit with a compiler).
#
# Input:  LMS_TORCH_DIR (a folder with include/ and lib/: PyTorch's package folder or libtorch), also
#         as an environment variable,
#         or Python3_EXECUTABLE, or Python3_ROOT_DIR, or the python3 on the PATH.
# Result: TorchSDK_FOUND, TorchSDK_DIR, TorchSDK_VERSION, TorchSDK_CUDA_VERSION (empty: a build
#         without CUDA), TorchSDK_SITE (folders that may hold the nvidia/ packages), and targets
#         LMS::torch_headers  include folders and the C++ ABI flag
#         LMS::torch_cpu      libtorch_cpu and libc10
#         LMS::torch_cuda     libc10_cuda (only when this PyTorch has CUDA)
#         LMS::libtorch       all of PyTorch, for programs: registers its CUDA kernels too
include(FindPackageHandleStandardArgs)

set(TorchSDK_SITE "")
set(reason "")
if(NOT LMS_TORCH_DIR AND DEFINED ENV{LMS_TORCH_DIR})
  set(LMS_TORCH_DIR "$ENV{LMS_TORCH_DIR}")
endif()
if(LMS_TORCH_DIR)
  get_filename_component(TorchSDK_DIR "${LMS_TORCH_DIR}" ABSOLUTE)
  get_filename_component(TorchSDK_SITE "${TorchSDK_DIR}" DIRECTORY)
else()
  set(TorchSDK_DIR "")
  if(NOT Python3_EXECUTABLE)
    find_package(Python3 COMPONENTS Interpreter QUIET)
  endif()
  if(Python3_EXECUTABLE)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/probe_torch.py"
      OUTPUT_VARIABLE probe
      RESULT_VARIABLE status
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(status EQUAL 0 AND probe MATCHES "torch=([^\n]+)\nsite=([^\n]*)")
      set(TorchSDK_DIR "${CMAKE_MATCH_1}")
      set(TorchSDK_SITE "${CMAKE_MATCH_2}")
    else()
      set(reason "${Python3_EXECUTABLE} has no torch")
    endif()
  else()
    set(reason "no Python 3 was found to ask for it")
  endif()
endif()

find_path(
  TorchSDK_INCLUDE_DIR torch/library.h PATHS "${TorchSDK_DIR}/include" NO_DEFAULT_PATH NO_CACHE)
foreach(name torch torch_cpu c10 torch_cuda c10_cuda)
  find_library(
    TorchSDK_${name}_LIBRARY ${name} PATHS "${TorchSDK_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
endforeach()

set(TorchSDK_VERSION "")
set(TorchSDK_CUDA_VERSION "")
if(EXISTS "${TorchSDK_DIR}/version.py")
  file(READ "${TorchSDK_DIR}/version.py" text)
  if(text MATCHES "__version__ = '([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(TorchSDK_VERSION "${CMAKE_MATCH_1}")
  endif()
  if(text MATCHES "\ncuda[^=\n]*= '([0-9.]+)'")
    set(TorchSDK_CUDA_VERSION "${CMAKE_MATCH_1}")
  endif()
elseif(EXISTS "${TorchSDK_DIR}/build-version")
  file(READ "${TorchSDK_DIR}/build-version" text)
  if(text MATCHES "^([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(TorchSDK_VERSION "${CMAKE_MATCH_1}")
  endif()
  if(text MATCHES "\\+cu([0-9]+)([0-9])")
    set(TorchSDK_CUDA_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  endif()
endif()
if(NOT TorchSDK_c10_cuda_LIBRARY)
  set(TorchSDK_CUDA_VERSION "")
endif()

find_package_handle_standard_args(
  TorchSDK
  REQUIRED_VARS TorchSDK_DIR TorchSDK_INCLUDE_DIR TorchSDK_torch_cpu_LIBRARY TorchSDK_c10_LIBRARY
  VERSION_VAR TorchSDK_VERSION
  REASON_FAILURE_MESSAGE "${reason}")

if(TorchSDK_FOUND AND NOT TARGET LMS::torch_cpu)
  # Every PyTorch that LMS supports is built with the C++11 ABI; one that says otherwise is heeded.
  set(abi 1)
  if(EXISTS "${TorchSDK_DIR}/share/cmake/Torch/TorchConfig.cmake")
    file(READ "${TorchSDK_DIR}/share/cmake/Torch/TorchConfig.cmake" text)
    if(text MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
      set(abi ${CMAKE_MATCH_1})
    endif()
  endif()

  add_library(LMS::torch_headers INTERFACE IMPORTED)
  target_include_directories(
    LMS::torch_headers SYSTEM INTERFACE "${TorchSDK_INCLUDE_DIR}"
                                        "${TorchSDK_INCLUDE_DIR}/torch/csrc/api/include")
  target_compile_definitions(LMS::torch_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=${abi})
  target_compile_features(LMS::torch_headers INTERFACE cxx_std_20)

  add_library(LMS::torch_cpu INTERFACE IMPORTED)
  target_link_libraries(
    LMS::torch_cpu INTERFACE LMS::torch_headers "${TorchSDK_torch_cpu_LIBRARY}"
                             "${TorchSDK_c10_LIBRARY}")

  add_library(LMS::libtorch INTERFACE IMPORTED)
  target_link_libraries(LMS::libtorch INTERFACE LMS::torch_cpu)
  if(TorchSDK_torch_LIBRARY)
    # A program names no symbol of libtorch_cuda: without this the linker would leave it out.
    target_link_options(
      LMS::libtorch INTERFACE
      "SHELL:-Wl,--push-state,--no-as-needed ${TorchSDK_torch_LIBRARY} -Wl,--pop-state")
  endif()

  if(TorchSDK_CUDA_VERSION)
    add_library(LMS::torch_cuda INTERFACE IMPORTED)
    target_link_libraries(
      LMS::torch_cuda INTERFACE LMS::torch_headers "${TorchSDK_c10_cuda_LIBRARY}")
  endif()
endif()
