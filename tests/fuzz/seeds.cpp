// fuzz_seeds FOLDER: writes small files to begin with into FOLDER/{png,jpeg,nifti,coco,lists}/.

#include <filesystem>
#include <iostream>

#include "lab/datasets/png.h"
#include "tests/datasets/fixtures.h"

namespace {

using namespace lms::data;
using namespace lms::data::fixtures;

class Folder {
 public:
  Folder(const std::filesystem::path& parent, const char* name) : path_(parent / name) {
    std::filesystem::create_directories(path_);
  }
  void add(const ByteVector& bytes) {
    write_file((path_ / std::to_string(count_++)).string(), bytes);
  }
  void add(std::string_view text) { add(ByteVector(text.begin(), text.end())); }

 private:
  std::filesystem::path path_;
  int count_ = 0;
};

void seed_images(const std::filesystem::path& to) {
  Folder png(to, "png");
  for (const int type : {0, 3}) {
    for (const int depth : {1, 2, 4, 8, 16}) {
      if (type == 3 && depth == 16) continue;
      Array<std::uint16_t> values{{5, 7}, std::vector<std::uint16_t>(35)};
      for (std::size_t i = 0; i < 35; ++i) values.values[i] = static_cast<std::uint16_t>(i % 2);
      png.add(indexed_png(values, type, depth));
    }
  }
  for (const int depth : {8, 16}) {
    png.add(color_png(6, 4, 2, depth));
    png.add(color_png(6, 4, 6, depth));
  }
  Folder jpeg(to, "jpeg");
  for (const JpegOptions& options :
       {JpegOptions{}, JpegOptions{.grey = true}, JpegOptions{.cmyk = true},
        JpegOptions{.progressive = true}, JpegOptions{.orientation = 6},
        JpegOptions{.orientation = 3, .big_endian = true}}) {
    jpeg.add(jpeg_bytes(gradient(20, 13), options));
  }
}

void seed_volumes(const std::filesystem::path& to) {
  Folder nifti(to, "nifti");
  const std::vector<double> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  for (const int datatype : {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280, 32}) {
    for (const bool big_endian : {false, true}) {
      nifti.add(nifti_bytes({3, 2, 2}, values,
                            {.datatype = datatype, .big_endian = big_endian, .slope = 2}));
    }
  }
  nifti.add(nifti_bytes({3, 2, 2}, values, {.version = 2}));
  nifti.add(gzip_bytes(nifti_bytes({3, 2, 2}, values, {})));
}

void seed_texts(const std::filesystem::path& to) {
  Folder coco(to, "coco");
  const std::string head =
      R"({"images":[{"id":1,"width":20,"height":10,"file_name":"a/b.jpg"}],)"
      R"("categories":[{"id":3,"name":"cup"}],"annotations":[{"id":1,"image_id":1,"category_id":3,)"
      R"("area":9.5,"iscrowd":0,"segmentation":)";
  coco.add(head + "[[1,1,9.5,2,3,8.25],[0,0,20,0,20,10,0,10]]}]}");
  coco.add(head + R"({"size":[10,20],"counts":[5,10,185]}}]})");
  coco.add(head + R"({"size":[10,20],"counts":"g0340005N30"}}]})");
  Folder lists(to, "lists");
  lists.add("2007_000032\r\n2007_000039\r\n\r\n../x\n");
  lists.add("voc:/data/x?split=val&first=3\nsynthetic:?size=3x4x5&cache=4GiB\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "fuzz_seeds FOLDER\n";
    return 2;
  }
  seed_images(argv[1]);
  seed_volumes(argv[1]);
  seed_texts(argv[1]);
  return 0;
}
