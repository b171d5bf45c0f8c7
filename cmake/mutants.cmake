# ww_mutated_copy(OUT NAME FILE FROM TO): a copy of src/FILE with FROM replaced by TO, for tests that plant bugs: linked in
# front of the library, it takes the place of the original. OUT gets its path. Configuring fails when FROM is not found.
function(ww_mutated_copy OUT NAME FILE FROM TO)
  set(source ${PROJECT_SOURCE_DIR}/src/${FILE})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} text)
  string(FIND "${text}" "${FROM}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "mutant ${NAME} no longer finds its line in ${FILE}")
  endif()
  string(REPLACE "${FROM}" "${TO}" text "${text}")
  set(mutated ${CMAKE_CURRENT_BINARY_DIR}/mutants/${NAME}.cc)
  file(CONFIGURE OUTPUT ${mutated} CONTENT "${text}" @ONLY)
  set_property(SOURCE ${mutated} APPEND PROPERTY COMPILE_OPTIONS -Wno-error)  # what FROM used may be left over
  set(${OUT} ${mutated} PARENT_SCOPE)
endfunction()
