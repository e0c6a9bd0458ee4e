// cmake/zlib/zlib.h, which stands in where zlib's headers are missing, declares what zlib.h does:
// another type, or another value, would not compile.

#include <gtest/gtest.h>
#include <zlib.h>

#include "cmake/zlib/zlib.h"

TEST(ZlibDeclarations, AreThoseOfZlib) {
  static_assert(Z_OK == 0 && Z_ERRNO == -1);
  EXPECT_EQ(gzopen("/nowhere/at/all.gz", "rb"), nullptr);
}
