// Package externalscaler is generated from externalscaler.proto, by
// protoc-gen-go and protoc-gen-go-grpc:
//
//	protoc --go_out=. --go-grpc_out=. --go_opt=paths=source_relative --go-grpc_opt=paths=source_relative externalscaler.proto
package externalscaler
