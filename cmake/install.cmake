# cmake --install: headers, library, CMake package and pkg-config file, all relocatable. Component "library".
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS tandem EXPORT tandemTargets COMPONENT library INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/tandem/tandem.h include/tandem/tandem.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem
  COMPONENT library)
install(EXPORT tandemTargets NAMESPACE tandem:: DESTINATION ${package_dir} COMPONENT library)

configure_package_config_file(cmake/tandemConfig.cmake.in ${PROJECT_BINARY_DIR}/tandemConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tandemConfig.cmake ${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT library)

cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}
  OUTPUT_VARIABLE prefix_from_pkgconfig)
set(cuda_libs)
if(TANDEM_CUDA_FOUND)
  set(cuda_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lpthread -ldl -lrt ")
endif()
configure_file(cmake/tandem.pc.in ${PROJECT_BINARY_DIR}/tandem.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tandem.pc DESTINATION ${pkgconfig_dir} COMPONENT library)
