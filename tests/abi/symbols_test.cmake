# cmake -DNM=nm -DLIBRARY=libtandem.so -DEXPECTED=symbols.txt -P symbols_test.cmake
# The shared library exports the C interface as committed, and nothing else.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY} OUTPUT_VARIABLE listing
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " [^\n]*" "" listing "${listing}")
string(STRIP "${listing}" listing)
string(REPLACE "\n" ";" found "${listing}")
file(STRINGS ${EXPECTED} expected)

set(missing ${expected})
list(REMOVE_ITEM missing ${found})
set(unknown ${found})
list(REMOVE_ITEM unknown ${expected})
if(missing OR unknown)
  message(FATAL_ERROR "exported symbols differ from ${EXPECTED}\nmissing: ${missing}\nnot in the list: ${unknown}")
endif()
