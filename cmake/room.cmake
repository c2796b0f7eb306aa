# A room: one folder of native/, one CMake target, one namespace, one subject.
#
#   room(engine SEES backend collective)
#
# The room is compiled with an include tree that holds nothing but its own headers and those of the
# rooms it names, transitively: an include of any other room does not compile. Headers are always
# included as "<room>/<file>.h". Folders within a room belong to it, but for those that are named APART: they are parts
# that not everything links, see room_part().
set(ROOM_INCLUDES "${CMAKE_BINARY_DIR}/rooms")

function(room NAME)
  cmake_parse_arguments(ROOM "" "" "SEES;APART" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/*.cc" "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/*/*.cc")
  foreach(part ${ROOM_APART})
    list(FILTER sources EXCLUDE REGEX "/${NAME}/${part}/[^/]+$")
  endforeach()
  file(MAKE_DIRECTORY "${ROOM_INCLUDES}/${NAME}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}" "${ROOM_INCLUDES}/${NAME}/${NAME}" SYMBOLIC)
  add_library(room_${NAME} STATIC ${sources})
  target_include_directories(room_${NAME} PUBLIC "${ROOM_INCLUDES}/${NAME}")
  foreach(seen ${ROOM_SEES})
    target_link_libraries(room_${NAME} PUBLIC room_${seen})
  endforeach()
  target_link_libraries(room_${NAME} PUBLIC farandole_options)
endfunction()

# A folder of a room as a target of its own, room_<room>_<part>, which sees its room:
#
#   room_part(transport loopback)
function(room_part NAME PART)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/${PART}/*.cc")
  add_library(room_${NAME}_${PART} STATIC ${sources})
  target_link_libraries(room_${NAME}_${PART} PUBLIC room_${NAME})
endfunction()
