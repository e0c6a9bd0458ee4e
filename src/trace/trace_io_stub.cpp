#include <cstdio>
#include "trace/trace.h"
#include "base/error.h"
namespace lms {
void save_trace(const Trace&, const std::string&);
void save_trace(const Trace& t, const std::string& path) {
  FILE* f = fopen(path.c_str(), "w");
  if (!f) throw Error("cannot write " + path);
  fprintf(f, "{\"blocks\":[");
  const char* sep = "";
  for (auto& b : t.blocks) { fprintf(f, "%s[%ld,%d,%d,%ld]", sep, long(b.bytes), b.born_in_step, b.movable, long(b.carried_from)); sep = ",\n"; }
  fprintf(f, "],\n\"operators\":[");
  sep = "";
  auto list = [&](const auto& l) { fprintf(f, "["); const char* s = ""; for (auto id : l) { fprintf(f, "%s%u", s, id); s = ","; } fprintf(f, "],"); };
  for (auto& o : t.operators) {
    fprintf(f, "%s[\"%s\",", sep, o.name.c_str()); sep = ",\n";
    list(o.reads); list(o.writes); list(o.allocs); list(o.frees);
    fprintf(f, "%.6f,%ld,%d,[", o.ms, long(o.workspace), o.repeatable);
    const char* s = "";
    for (auto& x : o.temporaries) { fprintf(f, "%s[%ld,%u,%u]", s, long(x.bytes), x.begin, x.end); s = ","; }
    fprintf(f, "]]");
  }
  fprintf(f, "]}\n"); fclose(f);
}
}
