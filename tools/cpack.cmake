# What differs between the kinds of packages; CPack reads it once for each kind.
list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build};engine;debian;/")
else()
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build};engine;libraries;/")
endif()
