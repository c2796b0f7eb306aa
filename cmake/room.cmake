# A room: one folder of native/, one CMake target, one namespace, one subject.
#
#   room(engine SEES backend collective)
#
# The room is compiled with an include tree that holds nothing but its own headers and those of the
# rooms it names, transitively: an include of any other room does not compile. Headers are always
# included as "<room>/<file>.h".
set(ROOM_INCLUDES "${CMAKE_BINARY_DIR}/rooms")

function(room NAME)
  cmake_parse_arguments(ROOM "" "" "SEES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/*.cc" "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/*/*.cc")
  file(MAKE_DIRECTORY "${ROOM_INCLUDES}/${NAME}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}" "${ROOM_INCLUDES}/${NAME}/${NAME}" SYMBOLIC)
  add_library(room_${NAME} STATIC ${sources})
  target_include_directories(room_${NAME} PUBLIC "${ROOM_INCLUDES}/${NAME}")
  foreach(seen ${ROOM_SEES})
    target_link_libraries(room_${NAME} PUBLIC room_${seen})
  endforeach()
  target_link_libraries(room_${NAME} PUBLIC farandole_options)
endfunction()
