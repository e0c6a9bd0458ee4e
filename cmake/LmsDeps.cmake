# What the core needs beside the standard library, from the system or from .vendor/ (see
# tools/scripts/vendor.sh):
#   LMS::json            headers of nlohmann-json, for building alone
#   LMS_ZLIB_LIBRARY     zlib, with its headers in LMS_ZLIB_INCLUDE
#   LMS_HIGHS_PATHS      where libhighs, the linear solver, may be found when a bound is computed:
#                        paths joined by colons, empty if none was found. Nothing is linked.
set(lms_vendor "${PROJECT_SOURCE_DIR}/.vendor")

find_path(LMS_JSON_INCLUDE nlohmann/json.hpp PATHS "${lms_vendor}/json/include")
find_path(LMS_ZLIB_INCLUDE zlib.h PATHS "${lms_vendor}/zlib/include")
find_library(LMS_ZLIB_LIBRARY NAMES z libz.so.1 PATHS "${lms_vendor}/zlib/lib")
mark_as_advanced(LMS_JSON_INCLUDE LMS_ZLIB_INCLUDE LMS_ZLIB_LIBRARY)
if(NOT LMS_JSON_INCLUDE)
  message(FATAL_ERROR "nlohmann-json was not found: install nlohmann-json3-dev, or run 'make vendor' "
                      "on a machine that has apt")
endif()
if(NOT LMS_ZLIB_INCLUDE OR NOT LMS_ZLIB_LIBRARY)
  message(FATAL_ERROR "zlib was not found: install zlib1g-dev, or run 'make vendor' on a machine "
                      "that has apt")
endif()

add_library(LMS::json INTERFACE IMPORTED GLOBAL)
target_include_directories(LMS::json SYSTEM INTERFACE "${LMS_JSON_INCLUDE}")

if(NOT Python3_EXECUTABLE)
  find_package(Python3 COMPONENTS Interpreter QUIET)
endif()
set(LMS_HIGHS_PATHS "")
if(Python3_EXECUTABLE)
  execute_process(
    COMMAND
      "${Python3_EXECUTABLE}" -c
      "import importlib.util as u; s = u.find_spec('highspy'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE found
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  if(found)
    file(GLOB LMS_HIGHS_PATHS "${found}/libhighs.so.?")
  endif()
endif()
file(GLOB found "${lms_vendor}/highs/libhighs.so.?")
list(APPEND LMS_HIGHS_PATHS ${found})
list(JOIN LMS_HIGHS_PATHS ":" LMS_HIGHS_PATHS)
