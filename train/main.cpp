#include <cstdio>

#include "train/program.h"

int main(int argc, char** argv) { return lms::train::run(argc, argv, stdout, stderr); }
