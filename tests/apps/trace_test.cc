#include "apps/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "apps/trace/shipped.h"

namespace mercury {
namespace {

const std::string kHeader =
    "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n";
const std::string kDependsHeader =
    "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority,depends\n";

std::string error_of(const std::string& text) {
  const Result<Trace> trace = parse_trace(text, "m.csv");
  if (trace) return "accepted";
  EXPECT_EQ(trace.error().code, Errc::kConfig);
  return trace.error().message;
}
std::string names_of(const std::string& text) {
  const Result<Trace> trace = parse_trace(text, "m.csv");
  if (!trace) return trace.error().message;
  std::string names;
  for (const TraceTensor& tensor : trace->tensors) names += tensor.name + " ";
  return names;
}

TEST(Trace, ReadsEveryColumnInAnyOrder) {
  const Result<Trace> trace = parse_trace(
      "# A comment, \"quoted\".\r\n"
      "name,priority,depends,layer_index,numel,dtype,update_ns,forward_pass_ns,backward_pass_ns\r\n"
      "conv/1.weight,65535,,0,1728,bf16,7,100,3600000000000\r\n"
      "fc:0,0,conv/1.weight,1,10,i64,0,0,5",
      "m.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->tensors.size(), 2U);
  const TraceTensor& conv = trace->tensors[0];
  EXPECT_EQ(conv.name, "conv/1.weight");
  EXPECT_EQ(conv.layer_index, 0U);
  EXPECT_EQ(conv.numel, 1728U);
  EXPECT_EQ(conv.dtype, Dtype::kBf16);
  EXPECT_EQ(conv.bytes(), 3456U);
  EXPECT_EQ(conv.forward_ns, 100U);
  EXPECT_EQ(conv.backward_ns, 3'600'000'000'000U);
  EXPECT_EQ(conv.update_ns, 7U);
  EXPECT_EQ(conv.priority, 65535);
  EXPECT_EQ(conv.line, 3U);
  EXPECT_TRUE(conv.depends.empty());
  EXPECT_EQ(trace->tensors[1].depends, std::vector<uint32_t>{0});
  EXPECT_EQ(trace->bytes(), 3456U + 80);
  EXPECT_EQ(trace->forward_ns(), 100U);
  EXPECT_EQ(trace->backward_ns(), 3'600'000'000'005U);
}

TEST(Trace, RefusesColumnsThatAreMissingUnknownOrTwice) {
  EXPECT_EQ(error_of("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns\n"),
            "m.csv:1: column 'priority' is missing");
  EXPECT_EQ(error_of("# only\nlayer,name\n"), "m.csv:2: unknown column 'layer'");
  EXPECT_EQ(error_of("name,numel,name\n"), "m.csv:1: column 'name' stands twice");
  EXPECT_EQ(error_of(""), "m.csv:1: no line of column names");
  EXPECT_EQ(error_of("# only\n"), "m.csv:2: no line of column names");
  EXPECT_EQ(error_of(kHeader), "m.csv:2: no tensors");
}

TEST(Trace, RefusesNumbersThatDoNotFit) {
  const auto error = [](const std::string& row) { return error_of(kHeader + row + "\n"); };
  EXPECT_EQ(error("0,a,-5,f32,0,0,0"), "m.csv:2: numel '-5' is negative");
  EXPECT_EQ(error("0,a,0,f32,0,0,0"), "m.csv:2: numel '0' is less than 1");
  EXPECT_EQ(error("0,a,,f32,0,0,0"), "m.csv:2: numel '' is not a whole number");
  EXPECT_EQ(error("0,a,1.5,f32,0,0,0"), "m.csv:2: numel '1.5' is not a whole number");
  EXPECT_EQ(error("0,a, 1,f32,0,0,0"), "m.csv:2: numel ' 1' is not a whole number");
  EXPECT_EQ(error("0,a,+1,f32,0,0,0"), "m.csv:2: numel '+1' is not a whole number");
  EXPECT_EQ(error("0,a,0x10,f32,0,0,0"), "m.csv:2: numel '0x10' is not a whole number");
  EXPECT_EQ(error("0,a,99999999999999999999999,f32,0,0,0"),
            "m.csv:2: numel '99999999999999999999999' is more than 274877906944");
  EXPECT_EQ(error("0,a,274877906945,f32,0,0,0"),
            "m.csv:2: numel '274877906945' is more than 274877906944");
  EXPECT_EQ(error("4294967296,a,1,f32,0,0,0"),
            "m.csv:2: layer_index '4294967296' is more than 4294967295");
  EXPECT_EQ(error("0,a,1,f32,-1,0,0"), "m.csv:2: forward_pass_ns '-1' is negative");
  EXPECT_EQ(error("0,a,1,f32,0,3600000000001,0"),
            "m.csv:2: backward_pass_ns '3600000000001' is more than 3600000000000");
  EXPECT_EQ(error("0,a,1,f32,0,0,65536"), "m.csv:2: priority '65536' is more than 65535");
  EXPECT_EQ(error("0,a,1,f32,0,0,-1"), "m.csv:2: priority '-1' is negative");
}

TEST(Trace, RefusesRowsThatAreNotRows) {
  const std::string good = "0,a,1,f32,0,0,0\n";
  const auto error = [&good](const std::string& row) { return error_of(kHeader + good + row); };
  EXPECT_EQ(error("1,b,1,f32,0,0\n"), "m.csv:3: 6 fields, but 7 columns");
  EXPECT_EQ(error("1,b,1,f32,0,0,0,\n"), "m.csv:3: 8 fields, but 7 columns");
  EXPECT_EQ(error("\n"), "m.csv:3: an empty line");
  EXPECT_EQ(error("#1,b,1,f32,0,0,0\n"), "m.csv:3: layer_index '#1' is not a whole number");
  EXPECT_EQ(error("1,\"b\",1,f32,0,0,0\n"),
            "m.csv:3: a quote: quoting is not supported, and no field needs it");
  EXPECT_EQ(error("1,b,1,float,0,0,0\n"),
            "m.csv:3: unknown dtype 'float': one of f32, f64, f16, bf16, i32, i64, i8, u8");
  EXPECT_EQ(error("1,a,1,f32,0,0,0\n"), "m.csv:3: tensor 'a' stands in line 2 already");
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a;b"), std::string("a\0b", 3),
        std::string(128, 'x'), std::string("\xc3\xa4")}) {
    EXPECT_TRUE(error("1," + name + ",1,f32,0,0,0\n").starts_with("m.csv:3: name '")) << name;
  }
}

TEST(Trace, RefusesMoreTensorsThanPriorities) {
  std::string text = kHeader;
  for (uint32_t i = 0; i < kMaxTraceTensors; ++i) {
    text += "0,t" + std::to_string(i) + ",1,f32,0,0,0\n";
  }
  EXPECT_EQ(error_of(text), "accepted");
  EXPECT_EQ(error_of(text + "0,a,1,f32,0,0,0\n"), "m.csv:65538: more than 65536 tensors");
}

TEST(Trace, WithoutDependenciesSortsByLayerThenByPosition) {
  EXPECT_EQ(names_of(kHeader + "2,c.weight,1,f32,0,0,0\n0,a,1,f32,0,0,0\n"
                               "2,c.bias,1,f32,0,0,0\n1,b,1,f32,0,0,0\n"),
            "a b c.weight c.bias ");
}

// The layer_index of this file is the order in which a framework lists its modules.
TEST(Trace, DependenciesDecideTheOrderNotThePosition) {
  const std::string text = kDependsHeader +
                           "0,head,1,f32,0,0,0,join\n"
                           "1,join,1,f32,0,0,0,left;right\n"
                           "2,left,1,f32,0,0,0,stem\n"
                           "3,right,1,f32,0,0,0,stem\n"
                           "4,stem,1,f32,0,0,0,\n"
                           "5,alone,1,f32,0,0,0,\n";
  EXPECT_EQ(names_of(text), "stem left right join head alone ");
  const Result<Trace> trace = parse_trace(text, "m.csv");
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->tensors[3].depends, (std::vector<uint32_t>{1, 2}));
}

TEST(Trace, RefusesDependenciesThatAreUnknownOrTwice) {
  EXPECT_EQ(error_of(kDependsHeader + "0,a,1,f32,0,0,0,\n1,b,1,f32,0,0,0,a;A\n"),
            "m.csv:3: depends on 'A', which no row names");
  EXPECT_EQ(error_of(kDependsHeader + "0,a,1,f32,0,0,0,\n1,b,1,f32,0,0,0,a;\n"),
            "m.csv:3: depends on '', which no row names");
  EXPECT_EQ(error_of(kDependsHeader + "0,a,1,f32,0,0,0,\n1,b,1,f32,0,0,0,a;a\n"),
            "m.csv:3: depends on 'a' twice");
}

TEST(Trace, RefusesCyclesByName) {
  EXPECT_EQ(error_of(kDependsHeader + "0,a,1,f32,0,0,0,a\n"),
            "m.csv:2: a cycle, each depends on the next: a -> a");
  // `head` waits for the cycle and `stem` comes before it: neither is named.
  EXPECT_EQ(error_of(kDependsHeader + "0,head,1,f32,0,0,0,c\n1,stem,1,f32,0,0,0,\n"
                                      "2,c,1,f32,0,0,0,b\n3,b,1,f32,0,0,0,stem;a\n"
                                      "4,a,1,f32,0,0,0,c\n"),
            "m.csv:4: a cycle, each depends on the next: c -> b -> a -> c");
  std::string ring = kDependsHeader;
  for (int i = 0; i < 1000; ++i) {
    ring += std::to_string(i) + ",t" + std::to_string(i) + ",1,f32,0,0,0,t" +
            std::to_string((i + 1) % 1000) + "\n";
  }
  EXPECT_EQ(error_of(ring),
            "m.csv:2: a cycle, each depends on the next: t0 -> t1 -> t2 -> t3 -> t4 -> t5 -> t6 -> "
            "t7 -> t8 -> t9 -> t10 -> t11 -> ... -> t0");
}

TEST(Trace, SortsRandomGraphsSoThatWhatIsNeededComesFirst) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<uint32_t> order(40);
    for (uint32_t i = 0; i < 40; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    // Row order[i] depends on some of the rows order[0..i): there is no cycle.
    std::vector<std::string> needs(40);
    for (uint32_t i = 0; i < 40; ++i) {
      for (uint32_t j = 0; j < i; ++j) {
        std::string& need = needs[order[i]];
        if (random() % 8 == 0) need += (need.empty() ? "t" : ";t") + std::to_string(order[j]);
      }
    }
    std::string text = kDependsHeader;
    for (uint32_t i = 0; i < 40; ++i) {
      text += "0,t" + std::to_string(i) + ",1,f32,0,0,0," + needs[i] + "\n";
    }
    const Result<Trace> trace = parse_trace(text, "m.csv");
    ASSERT_TRUE(trace) << trace.error().message;
    ASSERT_EQ(trace->tensors.size(), 40U);
    for (uint32_t i = 0; i < 40; ++i) {
      const TraceTensor& tensor = trace->tensors[i];
      const std::string& need = needs[tensor.line - 2];
      const auto named = need.empty() ? 0 : std::count(need.begin(), need.end(), ';') + 1;
      ASSERT_EQ(static_cast<size_t>(named), tensor.depends.size());
      ASSERT_TRUE(std::is_sorted(tensor.depends.begin(), tensor.depends.end()));
      for (uint32_t d : tensor.depends) {
        ASSERT_LT(d, i);
        ASSERT_NE((";" + need + ";").find(";" + trace->tensors[d].name + ";"), std::string::npos);
      }
    }
  }
}

// Any bytes are answered with a trace or an error that names the file and a line.
TEST(Trace, SurvivesHostileText) {
  const std::string good = kDependsHeader + "0,a,1,f32,1,2,0,\n1,b,2,bf16,3,4,1,a\n";
  for (uint32_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937 random(seed);
    std::string text = good;
    for (uint32_t edits = static_cast<uint32_t>(1 + random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      const char byte = "\0,;\n\"-9a\xff#"[random() % 10];
      random() % 2 == 0 ? void(text[at] = byte) : void(text.insert(at, 1, byte));
    }
    const Result<Trace> trace = parse_trace(text, "m.csv");
    if (!trace) {
      ASSERT_TRUE(trace.error().message.starts_with("m.csv:")) << "seed " << seed;
    }
  }
}

TEST(Trace, ReadsTheShippedModels) {
  struct Model {
    const char* file;
    size_t tensors;
    uint64_t parameters, forward_ns, backward_ns;
  };
  for (const Model& model : {Model{"vgg16", 32, 138'357'544, 39'200'000, 86'800'000},
                             Model{"vgg19", 38, 143'667'240, 46'400'000, 101'100'000},
                             Model{"alexnet", 16, 61'100'840, 5'333'333, 10'666'667},
                             Model{"resnet50", 161, 25'557'032, 42'700'000, 64'300'000},
                             Model{"mobilenet", 83, 4'231'976, 12'000'000, 18'000'000},
                             Model{"bert-base", 199, 109'482'240, 71'500'000, 143'000'000}}) {
    const Result<Trace> trace = read_trace(std::string(TRACE_FOLDER) + "/" + model.file + ".csv");
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->tensors.size(), model.tensors) << model.file;
    EXPECT_EQ(trace->bytes(), 4 * model.parameters) << model.file;
    EXPECT_EQ(trace->forward_ns(), model.forward_ns) << model.file;
    EXPECT_EQ(trace->backward_ns(), model.backward_ns) << model.file;
    for (size_t i = 0; i < trace->tensors.size(); ++i) {
      EXPECT_EQ(trace->tensors[i].priority, i) << model.file;
    }
  }
}

TEST(Trace, ShippedOnesAreFoundByName) {
  for (const std::string& model : shipped_models()) {
    const Result<Trace> trace = read_trace(trace_path(model));
    EXPECT_TRUE(trace) << (trace ? "" : trace.error().message);
    EXPECT_EQ(model_name(model), model);
  }
  EXPECT_EQ(trace_path("other"), "other");
  EXPECT_EQ(model_name("/a.b/mine.csv"), "mine");
}

TEST(Trace, ReadsWhatASpreadsheetWrites) {
  EXPECT_EQ(names_of("\xef\xbb\xbf" + kHeader + "0,a,1,f32,1,1,0\r\n"), "a ");
}

TEST(Trace, AMessageIsOneLineOfText) {
  const std::string name("a\0\x1b[2Jb", 7);
  const std::string error = error_of(kHeader + "0," + name + ",1,f32,1,1,0\n");
  EXPECT_NE(error.find("m.csv:2: name 'a??[2Jb'"), std::string::npos) << error;
}

TEST(Trace, SaysWhyAFileCannotBeRead) {
  const Result<Trace> missing = read_trace("/nonexistent/m.csv");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kSystem);
  EXPECT_EQ(missing.error().message, "/nonexistent/m.csv: No such file or directory");
  EXPECT_EQ(
      read_trace("vgg").error().message,
      "vgg: neither a trace file nor one of vgg16, vgg19, alexnet, resnet50, mobilenet, bert-base: "
      "No such file or directory");
  const Result<Trace> folder = read_trace("/");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().message, "/: Is a directory");
  const Result<Trace> endless = read_trace("/dev/zero");
  ASSERT_FALSE(endless);
  EXPECT_EQ(endless.error().message, "/dev/zero: more than 67108864 bytes");
}

}  // namespace
}  // namespace mercury
