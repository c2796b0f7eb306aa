// Allreduce over links by an exchange of slices; see collective/exchange.h.
//
// Data that is contiguous is sent from where it lies and received where it belongs. Data that is not, or that has to be
// scaled, goes through private memory, one chunk at a time.
#include "collective/exchange.h"

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {
namespace {

class BucketShare final : public Share {
 public:
  explicit BucketShare(const AllreduceJob& job) : bucket_(job), element_(reduce::size_of(job.dtype)) {}

  const Bucket& bucket() const noexcept { return bucket_; }

  const std::byte* addends(size_t from, size_t to, std::byte* room) override {
    const AllreduceJob& job = bucket_.job();
    if (const auto part = bucket_.within_a_piece(from, to); part && job.prescale.is_one()) {
      if (const void* const input = job.pieces[part->piece].input; input != nullptr) {
        return static_cast<const std::byte*>(input) + part->offset * element_;
      }
    }
    bucket_.copy_in(from, to, job.dtype, room);
    return room;
  }

  std::byte* place(size_t from, size_t to, std::byte* room) override {
    std::byte* const output = final_place(from, to);
    return output == nullptr ? room : output;
  }

  void settle(size_t from, size_t to, const std::byte* sums) override {
    if (sums != final_place(from, to)) {
      bucket_.copy_out(from, to, bucket_.job().dtype, sums, /*finish=*/false);
    }
  }

 private:
  // Null where the sums go to several tensors, or to none.
  std::byte* final_place(size_t from, size_t to) const {
    const auto part = bucket_.within_a_piece(from, to);
    if (!part) {
      return nullptr;
    }
    void* const output = bucket_.job().pieces[part->piece].output;
    return output == nullptr ? nullptr : static_cast<std::byte*>(output) + part->offset * element_;
  }

  const Bucket bucket_;
  const size_t element_;
};

}  // namespace

void allreduce_exchange(Context& context, const AllreduceJob& job) {
  BucketShare share(job);
  ExchangeJob exchange = cut_allreduce(share.bucket().end(), context.group.size(), job.dtype, job.dtype, context.knobs);
  exchange.op = job.op;
  exchange.postscale = job.postscale;
  const auto running = context.exchanges.begin(0, context.knobs, context.group.members, std::move(exchange), share);
  finish(*running, context.frames);
}

}  // namespace farandole::collective
