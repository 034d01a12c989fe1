# cmake -DBUILD=<build folder> -DSCRATCH=<folder> -DEXAMPLES=<examples/> -DCC=<C compiler> -DPKG_CONFIG=<or empty>
#       -DSTATIC=ON|OFF -P install_test.cmake
# Installs the library into an empty prefix, then builds and runs the examples against that alone: through
# find_package, and through pkg-config (C99, as the C compiler links it).
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix ${SCRATCH}/prefix)
file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --component library --prefix ${prefix})

run(${CMAKE_COMMAND} -S ${EXAMPLES} -B ${SCRATCH}/examples -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${CC}
  -DCMAKE_CXX_COMPILER=${CXX})
run(${CMAKE_COMMAND} --build ${SCRATCH}/examples)
run(${SCRATCH}/examples/minimal_c)
run(${SCRATCH}/examples/minimal_cpp)

if(PKG_CONFIG)
  file(GLOB_RECURSE package ${prefix}/tandem.pc)
  cmake_path(GET package PARENT_PATH package_dir)
  set(ENV{PKG_CONFIG_PATH} ${package_dir})
  set(static_flag)
  if(STATIC)
    set(static_flag --static)
  endif()
  execute_process(COMMAND ${PKG_CONFIG} ${static_flag} --cflags --libs tandem OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags)
  cmake_path(GET package_dir PARENT_PATH library_dir)
  run(${CC} -std=c99 -Wall -Wextra -Werror ${EXAMPLES}/minimal.c -o ${SCRATCH}/minimal_pkg_config ${flags} -lm
    -Wl,-rpath,${library_dir})
  run(${SCRATCH}/minimal_pkg_config)
endif()
