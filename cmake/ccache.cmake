# Compile through ccache where it is installed, unless whoever builds has named a launcher: with
# -DCMAKE_CXX_COMPILER_LAUNCHER=..., or in the environment; an empty value means none.
#
# The cache serves every clone of the project on a machine. Paths below the source folder count relative to it, and the
# build folder's name is no part of what is compared; an object from another clone differs in nothing but the folder
# that its debug information names.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(FARANDOLE_CCACHE ccache)
  mark_as_advanced(FARANDOLE_CCACHE)
  if(FARANDOLE_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${FARANDOLE_CCACHE}")
  endif()
endif()
