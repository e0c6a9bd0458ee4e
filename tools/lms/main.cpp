#include <cstdio>

#include "tools/lms/tool.h"

int main(int argc, char** argv) { return lms::tool::run(argc, argv, stdout, stderr); }
