# Whether the plugin of the endpoint picker is built (src/envoy/grpc): LORAMUX_WITH_ENVOY. It alone needs gRPC and protobuf.
set(LORAMUX_WITH_ENVOY OFF)
if(LORAMUX_BUILD_ENVOY STREQUAL "AUTO" AND (LORAMUX_SANITIZE OR NOT LORAMUX_BUILD_PROGRAM))
  return()   # a sanitizer would need a gRPC that was built with it
endif()
if(LORAMUX_BUILD_ENVOY)
  pkg_check_modules(GRPC QUIET IMPORTED_TARGET grpc++ protobuf)
  find_program(PROTOC_PROGRAM protoc)
  find_program(GRPC_CPP_PLUGIN_PROGRAM grpc_cpp_plugin)
  if(GRPC_FOUND AND PROTOC_PROGRAM AND GRPC_CPP_PLUGIN_PROGRAM)
    set(LORAMUX_WITH_ENVOY ON)
  elseif(NOT LORAMUX_BUILD_ENVOY STREQUAL "AUTO")
    message(FATAL_ERROR "LORAMUX_BUILD_ENVOY: expected gRPC for C++, protoc and grpc_cpp_plugin, and not all are installed. "
                        "Run tools/setup.sh envoy")
  endif()
endif()
