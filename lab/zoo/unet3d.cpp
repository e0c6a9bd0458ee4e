#include "lab/zoo/unet3d.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"
#include "lab/zoo/losses.h"
#include "lab/zoo/variants.h"

namespace lms::zoo {
namespace {

constexpr std::int64_t kFilters = 16;
constexpr std::int64_t kDepth = 5;
constexpr std::int64_t kHeads = 3;
constexpr double kEpsilon = 1e-3;
constexpr double kSlope = 0.3;

torch::Tensor up2(const torch::Tensor& input) {
  return at::upsample_nearest3d(input, {2 * input.size(2), 2 * input.size(3), 2 * input.size(4)});
}

}  // namespace

struct UNetStyle {
  bool fused_norm;
  bool same_padding;
};

/// Convolution, instance norm, LeakyReLU.
class UNetBlock : public torch::nn::Module {
 public:
  UNetBlock(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
            UNetStyle style)
      : style_(style),
        pad_after_(stride == 2 && style.same_padding),
        conv_(torch::nn::Conv3dOptions(in, out, kernel)
                  .stride(stride)
                  .padding(pad_after_ ? 0 : kernel / 2)) {
    register_module("conv", conv_);
    weight_ = register_parameter("weight", torch::ones({out}));
    bias_ = register_parameter("bias", torch::zeros({out}));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor output =
        conv_(pad_after_ ? torch::constant_pad_nd(input, {0, 1, 0, 1, 0, 1}) : input);
    return style_.fused_norm ? fused(output) : released(output);
  }

 private:
  // at::instance_norm ends in a view, over which LeakyReLU could not work in place cheaply.
  torch::Tensor fused(const torch::Tensor& input) {
    const std::int64_t n = input.size(0);
    const torch::Tensor flat =
        input.reshape({1, n * input.size(1), input.size(2), input.size(3), input.size(4)});
    torch::Tensor normed =
        at::batch_norm(flat, weight_.repeat(n), bias_.repeat(n), {}, {}, /*training=*/true,
                       /*momentum=*/0, kEpsilon, at::globalContext().userEnabledCuDNN());
    return torch::leaky_relu_(normed, kSlope).view(input.sizes());
  }

  torch::Tensor released(const torch::Tensor& input) {
    const torch::Tensor mean = input.mean({2, 3, 4}, /*keepdim=*/true);
    const torch::Tensor centred = input - mean;
    const torch::Tensor deviation = centred.square().mean({2, 3, 4}, /*keepdim=*/true).sqrt();
    const torch::Tensor normed = centred / (deviation + kEpsilon);
    return torch::leaky_relu(normed * weight_.view({-1, 1, 1, 1}) + bias_.view({-1, 1, 1, 1}),
                             kSlope);
  }

  UNetStyle style_;
  bool pad_after_;
  torch::nn::Conv3d conv_;
  torch::Tensor weight_;
  torch::Tensor bias_;
};

UNet3d::~UNet3d() = default;

UNet3d::UNet3d(const ModelOptions& options) : checkpoint_(options.checkpoint) {
  VariantReader reader("unet3d", options);
  channels_ = reader.channels(4);
  const std::int64_t labels = reader.classes(3);
  const UNetStyle style{reader.choice("norm", {"fused", "released"}) == "fused",
                        reader.choice("padding", {"symmetric", "same"}) == "same"};
  dropout_ = 0.3 * reader.on_or_off("dropout");
  reader.finish();

  const auto block = [&](const std::string& name, std::int64_t in, std::int64_t out,
                         std::int64_t kernel, std::int64_t stride) {
    return register_module(name, std::make_shared<UNetBlock>(in, out, kernel, stride, style));
  };
  std::int64_t in = channels_;
  for (std::int64_t level = 0; level < kDepth; ++level) {
    const std::string name = "encoder" + std::to_string(level);
    const std::int64_t filters = kFilters << level;
    encoders_.push_back({block(name + "_in", in, filters, 3, level == 0 ? 1 : 2),
                         block(name + "_context1", filters, filters, 3, 1),
                         block(name + "_context2", filters, filters, 3, 1)});
    in = filters;
  }
  decoders_.resize(kDepth - 1);
  for (std::int64_t level = kDepth - 2; level >= 0; --level) {
    const std::string name = "decoder" + std::to_string(level);
    const std::int64_t filters = kFilters << level;
    Decoder& decoder = decoders_[level];
    decoder.up = block(name + "_up", 2 * filters, filters, 3, 1);
    decoder.local3 = block(name + "_local3", 2 * filters, filters, 3, 1);
    decoder.local1 = block(name + "_local1", filters, filters, 1, 1);
    if (level < kHeads) {
      decoder.head =
          register_module("head" + std::to_string(level),
                          torch::nn::Conv3d(torch::nn::Conv3dOptions(filters, labels, 1)));
    }
  }
  for (const auto& child : modules(/*include_self=*/false)) {
    if (auto* conv = child->as<torch::nn::Conv3dImpl>()) {
      torch::nn::init::xavier_uniform_(conv->weight);
      torch::nn::init::zeros_(conv->bias);
    }
  }
}

std::vector<torch::Tensor> UNet3d::forward(const torch::Tensor& input) {
  check_input("unet3d", input, channels_, 3);
  for (const std::int64_t side : input.sizes().slice(2)) {
    TORCH_CHECK_VALUE(side % side_divisor() == 0, "unet3d: the input's shape is ", input.sizes(),
                      ", but its sides must be divisible by ", side_divisor());
  }
  std::vector<torch::Tensor> levels;
  torch::Tensor current = input;
  for (Encoder& encoder : encoders_) {
    const auto level = [this, &encoder](const std::vector<torch::Tensor>& inputs) {
      const torch::Tensor begun = encoder.in->forward(inputs[0]);
      torch::Tensor context = encoder.context1->forward(begun);
      context = torch::feature_dropout(context, dropout_, is_training());
      return begun + encoder.context2->forward(context);
    };
    current = run_block(checkpoint_, level, {current});
    levels.push_back(current);
  }
  torch::Tensor sum;
  for (std::int64_t level = kDepth - 2; level >= 0; --level) {
    Decoder& decoder = decoders_[level];
    if (checkpoint_) {
      const auto join = [&decoder](const std::vector<torch::Tensor>& inputs) {
        const torch::Tensor joined =
            torch::cat({inputs[0], decoder.up->forward(up2(inputs[1]))}, 1);
        return decoder.local1->forward(decoder.local3->forward(joined));
      };
      current = run_block(checkpoint_, join, {levels[level], current});
    } else {
      current = torch::cat({levels[level], decoder.up->forward(up2(current))}, 1);
      levels[level].reset();
      current = decoder.local1->forward(decoder.local3->forward(current));
    }
    if (level < kHeads) {
      const torch::Tensor scores = decoder.head(current);
      sum = sum.defined() ? up2(sum) + scores : scores;
    }
  }
  return {sum.sigmoid()};
}

torch::Tensor UNet3d::loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) {
  check_shape("unet3d", "target", batch.target, outputs.at(0).sizes());
  return dice_loss(outputs[0], batch.target);
}

}  // namespace lms::zoo
