# cmake -DFOLDER=... -DFILES=index.html,main.js -DOUTPUT=page_files.inc -P embed_files.cmake
# Writes each file as an array, and the table kPageFiles of them all.
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(table "")
foreach(file ${FILES})
  file(READ ${FOLDER}/${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(0x0a,)" "\\1\n" bytes "${bytes}")
  string(MAKE_C_IDENTIFIER "kBytes_${file}" name)
  string(APPEND arrays "static constexpr unsigned char ${name}[] = {\n${bytes}};\n")
  string(APPEND table "    page_file(\"${file}\", ${name}),\n")
endforeach()
file(WRITE ${OUTPUT} "${arrays}static const PageFile kPageFiles[] = {\n${table}};\n")
