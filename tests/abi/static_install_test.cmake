# The same as install_test.cmake, of a static library, which this builds first. Takes SOURCE, GENERATOR, LAUNCHER, CUDA
# (TANDEM_CUDA) and WERROR (TANDEM_WERROR), too. Beside BUILD and with its options, so that ccache may have the objects.
set(static_build ${BUILD}-static)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${static_build} -G ${GENERATOR} -DBUILD_SHARED_LIBS=OFF
  -DTANDEM_BUILD_TESTS=OFF -DTANDEM_BUILD_CLI=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=${CC}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CUDA_COMPILER_LAUNCHER=${LAUNCHER}
  -DTANDEM_CUDA=${CUDA} -DTANDEM_WERROR=${WERROR} -DTANDEM_PTXAS_REPORT=ON COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${static_build} -j 2 COMMAND_ERROR_IS_FATAL ANY)
set(BUILD ${static_build})
set(STATIC ON)
include(${CMAKE_CURRENT_LIST_DIR}/install_test.cmake)
