# What the core needs beside the standard library, from the system, from .vendor/ (see
# tools/scripts/vendor.sh), or, so that nobody needs to be root, from pip:
#   LMS::json            headers of nlohmann-json, for building alone (pip: nlohmann_json)
#   LMS_ZLIB_LIBRARY     zlib. Its headers in LMS_ZLIB_INCLUDE; where there are none, what is used of
#                        them is in cmake/zlib, for the library that is on every system
#   LMS_HIGHS_PATHS      where libhighs, the linear solver, may be found when a bound is computed:
#                        paths joined by colons, empty if none was found. Nothing is linked.
set(lms_vendor "${PROJECT_SOURCE_DIR}/.vendor")

if(NOT Python3_EXECUTABLE)
  find_package(Python3 COMPONENTS Interpreter QUIET)
endif()

# lms_find_package_folder(<variable> <package>): the folder of a Python package, or nothing.
function(lms_find_package_folder variable package)
  set(found "")
  if(Python3_EXECUTABLE)
    execute_process(
      COMMAND
        "${Python3_EXECUTABLE}" -c
        "import importlib.util as u; s = u.find_spec('${package}'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE found
      OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET)
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

lms_find_package_folder(package nlohmann_json)
find_path(LMS_JSON_INCLUDE nlohmann/json.hpp PATHS "${lms_vendor}/json/include" "${package}/include")
find_path(LMS_ZLIB_INCLUDE zlib.h PATHS "${lms_vendor}/zlib/include" "${CMAKE_CURRENT_LIST_DIR}/zlib")
find_library(LMS_ZLIB_LIBRARY NAMES z libz.so.1 PATHS "${lms_vendor}/zlib/lib")
mark_as_advanced(LMS_JSON_INCLUDE LMS_ZLIB_INCLUDE LMS_ZLIB_LIBRARY)
if(NOT LMS_JSON_INCLUDE)
  message(FATAL_ERROR "nlohmann-json was not found: pip install nlohmann_json (into the Python that "
                      "CMake uses), install nlohmann-json3-dev, or run 'make vendor' on a machine "
                      "that has apt")
endif()
if(NOT LMS_ZLIB_LIBRARY)
  message(FATAL_ERROR "zlib was not found, neither libz.so nor libz.so.1: install zlib1g, or let "
                      "LMS_ZLIB_LIBRARY name it")
endif()

add_library(LMS::json INTERFACE IMPORTED GLOBAL)
target_include_directories(LMS::json SYSTEM INTERFACE "${LMS_JSON_INCLUDE}")

set(LMS_HIGHS_PATHS "")
# A package goes to other machines: the tool gets the path of its own Python's highspy (LMS_HIGHS).
if(NOT DEFINED SKBUILD)
  lms_find_package_folder(package highspy)
  if(package)
    file(GLOB LMS_HIGHS_PATHS "${package}/libhighs.so.?")
  endif()
endif()
file(GLOB found "${lms_vendor}/highs/libhighs.so.?")
list(APPEND LMS_HIGHS_PATHS ${found})
list(JOIN LMS_HIGHS_PATHS ":" LMS_HIGHS_PATHS)
