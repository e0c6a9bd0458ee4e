# GoogleTest and rapidcheck, from the system or from .vendor/ (see tools/scripts/vendor.sh), and
# lms_add_tests(<label> DEPS <target>... [BY_SUITE [APART <suite>...]]): tests/<label>/*.cpp as the
# program lms_<label>_tests, a process for each test. BY_SUITE: for each suite instead, as PyTorch
# takes longer to load than most tests to run; but not of the suites that stand APART.
include(GoogleTest)

set(lms_vendor "${PROJECT_SOURCE_DIR}/.vendor")
find_package(GTest QUIET)
if(NOT TARGET GTest::gtest_main)
  if(NOT EXISTS "${lms_vendor}/googletest/CMakeLists.txt")
    message(FATAL_ERROR "GoogleTest was not found: install libgtest-dev, or run 'make vendor' on a "
                        "machine that has apt; or build without tests, -DLMS_TESTS=OFF")
  endif()
  set(INSTALL_GTEST OFF)
  set(CMAKE_WARN_DEPRECATED OFF) # it asks for an older CMake
  add_subdirectory("${lms_vendor}/googletest" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
  foreach(target gtest gtest_main)
    target_compile_options(${target} PRIVATE -Wno-error) # its warnings are not ours
  endforeach()
endif()

find_path(LMS_RAPIDCHECK_INCLUDE rapidcheck.h PATHS "${lms_vendor}/rapidcheck/include")
find_library(LMS_RAPIDCHECK_LIBRARY rapidcheck PATHS "${lms_vendor}/rapidcheck/lib")
if(NOT LMS_RAPIDCHECK_INCLUDE OR NOT LMS_RAPIDCHECK_LIBRARY)
  message(FATAL_ERROR "rapidcheck was not found: install librapidcheck-dev, or run 'make vendor' on "
                      "a machine that has apt; or build without tests, -DLMS_TESTS=OFF")
endif()
add_library(lms_test_main INTERFACE)
target_include_directories(lms_test_main SYSTEM INTERFACE "${LMS_RAPIDCHECK_INCLUDE}")
target_link_libraries(
  lms_test_main INTERFACE GTest::gtest GTest::gtest_main "${LMS_RAPIDCHECK_LIBRARY}"
                          Threads::Threads)

function(lms_add_tests label)
  cmake_parse_arguments(PARSE_ARGV 1 arg "BY_SUITE" "" "DEPS;APART")
  string(TOUPPER "${LMS_TESTS}" all)
  if(NOT all MATCHES "^(ON|YES|Y|TRUE|1)$" AND NOT label IN_LIST LMS_TESTS)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${label}/*.cpp")
  if(NOT sources)
    message(STATUS "tests/${label}: no sources")
    return()
  endif()
  set(target lms_${label}_tests)
  add_executable(${target} ${sources})
  lms_target_defaults(${target})
  # -O3 takes the compiler two thirds longer, and these tests no less time: what they call is in libraries.
  if(label MATCHES "^(core|report|tools)$")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_include_directories(
    ${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src"
                      "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${target} PRIVATE ${arg_DEPS} lms_test_main lms_sanitize)
  # No plan that an earlier run has kept decides a test: there is no folder for them. Threads that have
  # nothing to do sleep: tests run beside each other, and who spins takes the processor from another.
  set(environment "XDG_CACHE_HOME=/dev/null;OMP_WAIT_POLICY=PASSIVE")
  if(NOT arg_BY_SUITE)
    gtest_discover_tests(
      ${target}
      DISCOVERY_MODE PRE_TEST
      PROPERTIES LABELS ${label} TIMEOUT 300 ENVIRONMENT "${environment}")
    return()
  endif()
  set(suites "${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake")
  file(
    GENERATE
    OUTPUT "${suites}"
    CONTENT
      "set(program \"$<TARGET_FILE:${target}>\")
set(label ${label})
set(apart \"${arg_APART}\")
set(environment \"${environment}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/discover_suites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${suites}")
endfunction()
