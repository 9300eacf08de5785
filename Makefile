# Two commands for people: `make demo` and `make test`. Everything else is CMake (CMakePresets.json).

# The objects of one build directory serve the others too.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime

.PHONY: help demo test test-all test-arm64 build cuda test-cuda deb tarball wheel docs format setup setup-test bench clean

help:
	@echo "make demo          install missing dependencies, build the server, serve the demo model with all its adapters,"
	@echo "                   and ask each one"
	@echo "make demo ONCE=1   the same, but stop the server after the answers"
	@echo "make test          install the tests' dependencies, build, run the tests (CONTRIBUTING.md lists them)"
	@echo "make test-all      the rest: every test under every sanitizer, long soaks, long fuzzing"
	@echo "make test-arm64    the kernels and the model for ARM, cross-compiled and run under qemu"
	@echo "make build         build the program with all its commands: build/release/tools/loramux"
	@echo "make cuda          install NVIDIA's compiler in build/cuda, build the CUDA plugin: build/release/tools/libloramux_cuda.so"
	@echo "make test-cuda     the same, and the checks of the compiled kernels; they need no GPU"
	@echo "make deb           build the Debian package: build/package/loramux_VERSION_ARCH.deb"
	@echo "make tarball       build/package/loramux-VERSION-linux-MACHINE.tar.gz: the program, its libraries and the demo, for any folder"
	@echo "make wheel         the same as build/package/loramux-VERSION-py3-none-*.whl, for pip install"
	@echo "make docs          regenerate the flag reference and the diagram of the rooms from the code"
	@echo "make format        format the C++ sources with clang-format 14"
	@echo "make bench         measure this machine, and compare loramux with its limits"
	@echo "make clean         remove build/"

setup:
	@tools/setup.sh build

setup-test:
	@tools/setup.sh test

# Without tests: what they need is not asked for. `cmake --preset release` and `make test` turn them on again.
build: setup
	cmake --preset release -DLORAMUX_BUILD_TESTS=OFF
	cmake --build --preset release --target loramux

cuda: setup
	@tools/setup.sh cuda
	cmake --preset cuda -DLORAMUX_BUILD_TESTS=OFF
	cmake --build --preset cuda --target loramux_cuda
	install -D -m 644 build/cuda-release/tools/libloramux_cuda.so build/release/tools/libloramux_cuda.so

test-cuda: setup-test cuda
	cmake --preset cuda
	cmake --build --preset cuda --target typical_launches gpu_bench assist_handoff
	ctest --preset cuda

demo: setup
	cmake --preset demo
	cmake --build --preset demo --target loramux
	python3 tools/demo.py --binary build/demo/tools/loramux $(if $(ONCE),--once,)

deb: setup
	cmake --preset release -DLORAMUX_BUILD_TESTS=OFF -DLORAMUX_BUILD_LAB=OFF -B build/package
	cmake --build build/package --target package

tarball wheel: build
	@tools/setup.sh bundle
	tools/bundle.py $@

test: setup-test
	tests/run.sh

test-all: setup-test
	tests/run.sh all

test-arm64:
	@tools/setup.sh arm64
	tests/run.sh arm64

docs: build
	build/release/tools/loramux reference markdown >build/flags.md
	mv build/flags.md docs/reference/flags.md
	python3 tests/rooms.py

format:
	git ls-files '*.cc' '*.h' '*.c' | xargs clang-format-14 -i

bench: setup
	cmake --preset release -DLORAMUX_BUILD_TESTS=OFF
	cmake --build --preset release --target benchmarks
	build/release/lab/bench/planning_bench && build/release/lab/bench/cache_bench && build/release/lab/bench/kernels_bench && build/release/lab/bench/serving_bench

clean:
	rm -rf build
