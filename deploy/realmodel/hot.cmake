# The arithmetic is compiled for speed; the rest of the engine, which is most
# of the code, for a short build (see install.sh).
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
