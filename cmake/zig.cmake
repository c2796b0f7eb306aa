# A toolchain: zig as the compiler, for libraries that run where glibc is old, on this processor or another:
#
#   cmake --toolchain cmake/zig.cmake -DFARANDOLE_ZIG=/path/to/zig -DFARANDOLE_ZIG_TARGET=aarch64-linux-gnu.2.17
#
# zig brings clang, the C++ library, and the headers and symbols of every glibc, so that nothing of the machine at hand
# gets into what is built. CMake wants programs where zig has verbs: each tool is a file that says the verb.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FARANDOLE_ZIG FARANDOLE_ZIG_TARGET FARANDOLE_ZIG_TOOLS)

set(CMAKE_SYSTEM_NAME Linux)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${FARANDOLE_ZIG_TARGET}")

# A probe of the compiler has a build folder of its own, and uses the same tools.
if(NOT FARANDOLE_ZIG_TOOLS)
  set(FARANDOLE_ZIG_TOOLS "${CMAKE_BINARY_DIR}/zig")
endif()
function(zig_tool NAME VERB)
  set(tool "${FARANDOLE_ZIG_TOOLS}/${NAME}")
  if(NOT EXISTS "${tool}")
    file(WRITE "${tool}" "#!/bin/sh\nexec '${FARANDOLE_ZIG}' ${VERB} \"$@\"\n")
    file(CHMOD "${tool}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
endfunction()
zig_tool(cc "cc -target ${FARANDOLE_ZIG_TARGET}")
zig_tool(c++ "c++ -target ${FARANDOLE_ZIG_TARGET}")
zig_tool(ar ar)
zig_tool(ranlib ranlib)
set(CMAKE_C_COMPILER "${FARANDOLE_ZIG_TOOLS}/cc")
set(CMAKE_CXX_COMPILER "${FARANDOLE_ZIG_TOOLS}/c++")
set(CMAKE_AR "${FARANDOLE_ZIG_TOOLS}/ar")
set(CMAKE_RANLIB "${FARANDOLE_ZIG_TOOLS}/ranlib")

# zig keeps what it has compiled by itself, and ccache does not know it.
set(CMAKE_C_COMPILER_LAUNCHER "")
set(CMAKE_CXX_COMPILER_LAUNCHER "")
# zig always adds debug information, and the machine's strip knows no other processor: the linker leaves it out.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
