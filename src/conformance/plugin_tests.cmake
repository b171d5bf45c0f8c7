# The example plug-in, and one library for each mistake of testing/plugin_mutant.c.
if(WARPWEAVE_TESTS)
  set(WW_PLUGIN_DIR ${CMAKE_CURRENT_BINARY_DIR}/plugins CACHE INTERNAL "Where the plug-ins of the tests are")
  function(ww_test_plugin NAME SOURCE)
    add_library(test_plugin_${NAME} MODULE ${SOURCE})
    set_target_properties(test_plugin_${NAME} PROPERTIES OUTPUT_NAME ${NAME} PREFIX "" SUFFIX ".so"
      LIBRARY_OUTPUT_DIRECTORY ${WW_PLUGIN_DIR})
    target_include_directories(test_plugin_${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_compile_definitions(test_plugin_${NAME} PRIVATE MUTANT=${NAME} MUTANT_NAME="${NAME}")
    target_link_libraries(test_plugin_${NAME} PRIVATE m)
    add_dependencies(plugin_check_test test_plugin_${NAME})
  endfunction()

  ww_test(plugin_check_test SRCS plugin_check_test.cc DEPS conformance)
  target_compile_definitions(plugin_check_test PRIVATE WW_PLUGIN_DIR="${WW_PLUGIN_DIR}")
  ww_test_plugin(online_softmax ${PROJECT_SOURCE_DIR}/examples/plugin/online_softmax.c)
  ww_test_plugin(no_symbol testing/plugin_without_entry.c)
  foreach(mutant VERSION NO_TABLE NO_DECODE HALF_GRAPHS SMALL_STRUCT NAMELESS RESERVED_NAME UNKNOWN_PHASE
          NO_DTYPE TREES_WITHOUT_MASK NEGATIVE_PAGE CREATE_FAILS PLAN_FAILS IGNORES_WINDOW WINDOW_OFF_BY_ONE
          IGNORES_SINKS IGNORES_SOFTCAP CLAIMS_F16 CLAIMS_FP8 CLAIMS_TREES CLAIMS_NON_CAUSAL LSE_IN_BITS NO_LSE
          BATCH_DEPENDENT FORWARD_FAILS OLD_VERSION KINDLESS UNKNOWN_KIND ONLY_MLA TWO_DEVICES ONLY_NPU RIGHT_WINDOW
          ONLY_CUDA UNKNOWN_GPU)
    ww_test_plugin(${mutant} testing/plugin_mutant.c)
  endforeach()
endif()
