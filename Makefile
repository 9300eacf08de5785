# Two commands for people: `make demo` and `make test`. Everything else is CMake (CMakePresets.json).

# The objects of one build directory serve the others too.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros

.PHONY: help demo test build deb setup setup-test bench clean

help:
	@echo "make demo          install what is missing, build, serve the demo model with all its adapters, ask each one"
	@echo "make demo ONCE=1   the same, but end after the answers"
	@echo "make test          install what the tests need, build, run every test (about 40 minutes on 2 cores)"
	@echo "make build         configure and build the release preset"
	@echo "make deb           build the Debian package: build/package/loramux_VERSION_ARCH.deb (docs/guide/install.md)"
	@echo "make bench         measure this machine, and loramux against its limits"
	@echo "make clean         remove build/"

setup:
	@tools/setup.sh build

setup-test:
	@tools/setup.sh test

build: setup
	cmake --preset release
	cmake --build --preset release

demo: setup
	cmake --preset release -DLORAMUX_BUILD_TESTS=OFF -DLORAMUX_BUILD_BENCH=OFF -B build/demo
	cmake --build build/demo
	python3 tools/demo.py --binary build/demo/tools/loramux $(if $(ONCE),--once,)

deb: setup
	cmake --preset release -DLORAMUX_BUILD_TESTS=OFF -DLORAMUX_BUILD_BENCH=OFF -B build/package
	cmake --build build/package --target package

test: setup-test
	tests/run.sh

bench: build
	build/release/bench/planning_bench && build/release/bench/cache_bench && build/release/bench/kernels_bench && build/release/bench/serving_bench

clean:
	rm -rf build
