#include <cstdio>

#include "lab/train/program.h"

int main(int argc, char** argv) { return lms::train::run(argc, argv, stdout, stderr); }
