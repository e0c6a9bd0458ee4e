# Run by ctest: a test for each suite of `program`; of the suites in `apart`, one for each of theirs.
cmake_minimum_required(VERSION 3.24)

if(NOT EXISTS "${program}")
  add_test("lms_${label}_tests_NOT_BUILT" "lms_${label}_tests_NOT_BUILT")
  return()
endif()
execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${program} --gtest_list_tests: ${status}")
endif()

# Programs have suites of the same name, and set_tests_properties() means all tests of a name.
function(add name filter)
  set(test "${label}.${name}")
  add_test("${test}" "${program}" "--gtest_filter=${filter}")
  set_tests_properties("${test}" PROPERTIES LABELS "${label}" TIMEOUT 300 ENVIRONMENT "${environment}")
endfunction()

string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}") # values of parameters
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
foreach(line IN LISTS lines)
  if(line MATCHES "^([^ ]+)\\.$")
    set(suite "${CMAKE_MATCH_1}")
    if(NOT suite IN_LIST apart)
      add("${suite}" "${suite}.*")
    endif()
  elseif(line MATCHES "^  ([^ ]+)$" AND suite IN_LIST apart)
    add("${suite}.${CMAKE_MATCH_1}" "${suite}.${CMAKE_MATCH_1}")
  endif()
endforeach()
