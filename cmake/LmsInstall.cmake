# Installation: under pip the library and the tool, into the package; else a CMake package,
# find_package(LMS).
if(DEFINED SKBUILD)
  if(NOT TARGET lms_torch)
    message(FATAL_ERROR "No PyTorch was found for the Python package to be built against, in the "
                        "site-packages of ${Python3_EXECUTABLE}: install it first (pip install "
                        "'torch>=2.11'), or let the variable LMS_TORCH_DIR name its folder")
  endif()
  # The package lies beside torch, and torch beside the nvidia packages.
  set(site "$ORIGIN/../..")
  set(run_path "${site}/torch/lib")
  if(lms_cudart MATCHES "/(nvidia/[^/]+/lib)/[^/]+$")
    list(APPEND run_path "${site}/${CMAKE_MATCH_1}")
  endif()
  set_target_properties(lms_torch PROPERTIES INSTALL_RPATH "${run_path}")
  install(TARGETS lms_torch LIBRARY DESTINATION torch_lms/lib)
  if(TARGET lms_torch_without_cuda)
    set_target_properties(
      lms_torch_without_cuda PROPERTIES INSTALL_RPATH "${site}/../torch/lib")
    install(TARGETS lms_torch_without_cuda LIBRARY DESTINATION torch_lms/lib/cpu)
  endif()
  if(TARGET lms_tool)
    install(TARGETS lms_tool RUNTIME DESTINATION torch_lms_tool/bin)
  endif()
  return()
endif()

include(CMakePackageConfigHelpers)
set(lms_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/LMS")
get_property(targets GLOBAL PROPERTY LMS_CORE_TARGETS)
list(APPEND targets lms_core)
if(TARGET lms_torch)
  list(APPEND targets lms_torch)
  # A program's own run path is not searched for the needs of its libraries. Written out, because
  # INSTALL_RPATH_USE_LINK_PATH leaves out folders within the source tree, such as .venv.
  set(run_path "${TorchSDK_DIR}/lib")
  if(LMS_HAS_CUDA)
    get_filename_component(folder "${lms_cudart}" DIRECTORY)
    list(APPEND run_path "${folder}")
  endif()
  set_target_properties(lms_torch PROPERTIES INSTALL_RPATH "${run_path}")
endif()

install(TARGETS ${targets} EXPORT LMSTargets)
install(
  EXPORT LMSTargets
  NAMESPACE LMS::
  DESTINATION "${lms_config_dir}")

if(EXISTS "${PROJECT_SOURCE_DIR}/include/lms")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/lms" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
get_property(headers GLOBAL PROPERTY LMS_CORE_HEADERS)
foreach(header IN LISTS headers)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}/src" "${header}")
  get_filename_component(folder "${path}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lms/core/${folder}")
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/LMSConfig.cmake.in" "${PROJECT_BINARY_DIR}/LMSConfig.cmake"
  INSTALL_DESTINATION "${lms_config_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/LMSConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(
  FILES "${PROJECT_BINARY_DIR}/LMSConfig.cmake"
        "${PROJECT_BINARY_DIR}/LMSConfigVersion.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/FindTorchSDK.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/LmsCuda.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/probe_torch.py"
  DESTINATION "${lms_config_dir}")
