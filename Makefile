# LMS: `make demo` and `make test` do all of their own set-up. See CONTRIBUTING.md.
.DEFAULT_GOAL := help
.PHONY: help demo test test-integrations test-bounds test-sanitizers test-gpu test-newest wheels test-wheels attack bench build vendor site reference format check-format tidy clean

ARGS ?=
FILES ?=

help:  ## this list
	@sed -n 's/^\([a-z-]*\):  *## /  make \1\t/p' Makefile | expand -t 24

demo:  ## train a brain segmentation in memory, then in less than a third of it (ARGS)
	@tools/scripts/demo.sh $(ARGS)

test:  ## all tests that need no GPU
	@tools/scripts/test.sh

test-integrations:  ## torch_lms in trainers of others (transformers, lightning, ...), on the CPU
	@tools/scripts/test_integrations.sh $(ARGS)

test-bounds:  ## the bounds of real steps (ARGS=--if-new: unless they have passed)
	@tools/scripts/test_bounds.sh $(ARGS)

test-sanitizers:  ## the C++ tests of the core under sanitizers (ARGS=--if-new: unless they have passed)
	@tools/scripts/test_sanitizers.sh $(ARGS)

test-gpu:  ## the tests on a GPU, with the machine's own python3 (PYTHON) and its PyTorch
	@tools/scripts/test_gpu.sh

test-newest:  ## build for and test the newest PyTorch, on the CPU
	@tools/scripts/test_newest.sh

wheels:  ## wheels for PyTorch 2.11 and the newest, in dist/ (ARGS="2.12 2.13": for those)
	@tools/scripts/wheels.sh $(ARGS)

test-wheels:  ## each wheel of dist/ in a new virtual environment without a compiler
	@tools/scripts/test_wheels.sh $(ARGS)

attack:  ## random programs under LMS against plain PyTorch (ARGS="--programs 100000 --jobs 2")
	@tools/scripts/attack.sh $(ARGS)

bench:  ## benchmarks on a GPU (ARGS="--suite ..." or "--help")
	@tools/scripts/bench.sh $(ARGS)

build:  ## the development build, in build/
	@tools/scripts/build.sh

vendor:  ## fill .vendor/ for a test machine without a network
	@tools/scripts/vendor.sh

format:  ## format the sources
	@tools/scripts/format.sh

check-format:  ## fail if a source is not formatted
	@tools/scripts/format.sh --check

site:  ## the site, in out/site (ARGS=serve shows it)
	@tools/scripts/site.sh $(ARGS)

reference:  ## write docs/reference.md from the code
	@tools/scripts/reference.sh

tidy:  ## clang-tidy (FILES="src/base/bytes.cpp ...")
	@tools/scripts/tidy.sh $(FILES)

clean:  ## remove all builds; the virtual environments stay
	rm -rf build build-asan build-tsan build-gpu build-newest build-wheel-* python/torch_lms/lib
