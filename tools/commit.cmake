# Writes a C++ file that knows which commit is built: cmake -DSOURCE=TREE -DOUTPUT=FILE -P tools/commit.cmake
# Without git, or in a tree that is no repository of its own, the commit is "". A file that says it already stays as it is.
set(commit "")
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=7 --exclude=* OUTPUT_VARIABLE commit
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(text "namespace engine {\nconst char* BuildCommit();\nconst char* BuildCommit() { return \"${commit}\"; }\n}  // namespace engine\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
