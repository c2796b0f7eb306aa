// Streams, events and time of the fake GPU.
#include <thread>

#include "gpu_fake/device.h"

namespace gpu_fake {
namespace {

using Streams = OnDevice;

TEST_F(Streams, CopyLandsWhenTheStreamComesToIt) {
  Stream* const s = stream();
  const Address device = allocate(4);
  unsigned char* const host = pinned(4);
  fake_gpu_hold(s);
  ok(cuMemsetD8Async(device, 7, 4, s));
  ok(cuMemcpyDtoHAsync_v2(host, device, 4, s));
  EXPECT_EQ(cuStreamQuery(s), kNotReady);
  EXPECT_EQ(host[0], 0xFF);
  fake_gpu_release(s);
  ok(cuStreamSynchronize(s));
  EXPECT_EQ(host[0], 7);
  EXPECT_EQ(cuStreamQuery(s), kSuccess);
  ok(cuMemFreeHost(host));
}

TEST_F(Streams, PinnedMemoryIsReadWhenTheCopyRunsAndPageableMemoryAtTheCall) {
  Stream* const s = stream();
  const Address device = allocate(2);
  unsigned char* const host = pinned(1);
  unsigned char pageable = 1;
  host[0] = 1;
  fake_gpu_hold(s);
  ok(cuMemcpyHtoDAsync_v2(device, host, 1, s));
  ok(cuMemcpyHtoDAsync_v2(device + 1, &pageable, 1, s));
  host[0] = 2;
  pageable = 2;
  fake_gpu_release(s);
  ok(cuStreamSynchronize(s));
  EXPECT_EQ(bytes_at(device, 2), (std::vector<unsigned char>{2, 1}));
  ok(cuMemFreeHost(host));
}

TEST_F(Streams, CopyToPageableMemoryMakesTheHostWait) {
  Stream* const s = stream();
  const Address device = allocate(1);
  unsigned char host = 0;
  ok(cuMemsetD8Async(device, 5, 1, s));
  EXPECT_EQ(fake_gpu_count("host_waits"), 0u);
  ok(cuMemcpyDtoHAsync_v2(&host, device, 1, s));
  EXPECT_EQ(host, 5);
  EXPECT_EQ(fake_gpu_count("host_waits"), 1u);
  EXPECT_EQ(fake_gpu_count("implicit_waits"), 1u);
}

TEST_F(Streams, WaitForAnEventOrdersTwoStreams) {
  Stream* const producer = stream();
  Stream* const consumer = stream();
  Event* const ready = event();
  const Address device = allocate(1);
  unsigned char* const host = pinned(1);
  for (unsigned seed = 1; seed <= 20; ++seed) {
    fake_gpu_time("random", seed, 500);
    const auto value = static_cast<unsigned char>(seed);
    ok(cuMemsetD8Async(device, value, 1, producer));
    ok(cuEventRecord(ready, producer));
    ok(cuStreamWaitEvent(consumer, ready, 0));
    ok(cuMemcpyDtoHAsync_v2(host, device, 1, consumer));
    ok(cuStreamSynchronize(consumer));
    ASSERT_EQ(host[0], value);
  }
  ok(cuMemFreeHost(host));
}

TEST_F(Streams, WithoutTheWaitTheOtherStreamReadsWhatWasThereBefore) {
  Stream* const producer = stream();
  Stream* const consumer = stream();
  const Address device = allocate(1);
  unsigned char* const host = pinned(1);
  fake_gpu_hold(producer);
  ok(cuMemsetD8Async(device, 3, 1, producer));
  ok(cuMemcpyDtoHAsync_v2(host, device, 1, consumer));
  ok(cuStreamSynchronize(consumer));
  EXPECT_EQ(host[0], 0xFF);
  fake_gpu_release(producer);
  ok(cuStreamSynchronize(producer));
  ok(cuMemFreeHost(host));
}

TEST_F(Streams, WaitIsForTheRecordBeforeItAndNotForALaterOne) {
  Stream* const producer = stream();
  Stream* const consumer = stream();
  Event* const ready = event();
  fake_gpu_hold(consumer);
  ok(cuEventRecord(ready, producer));
  ok(cuStreamWaitEvent(consumer, ready, 0));
  ok(cuStreamSynchronize(producer));
  fake_gpu_hold(producer);
  ok(cuEventRecord(ready, producer));
  fake_gpu_release(consumer);
  ok(cuStreamSynchronize(consumer));
  EXPECT_EQ(cuEventQuery(ready), kNotReady);
  fake_gpu_release(producer);
  ok(cuEventSynchronize(ready));
}

TEST_F(Streams, LazyStreamRunsWhenAWaitLeadsToIt) {
  fake_gpu_time("lazy", 1, 0);
  Stream* const producer = stream();
  Stream* const consumer = stream();
  Event* const ready = event();
  ok(cuEventRecord(ready, producer));
  ok(cuStreamWaitEvent(consumer, ready, 0));
  EXPECT_EQ(cuEventQuery(ready), kNotReady);
  ok(cuStreamSynchronize(consumer));
  EXPECT_EQ(cuEventQuery(ready), kSuccess);
}

TEST_F(Streams, LazyStreamRunsWhenItIsAskedForAgainAndAgain) {
  fake_gpu_time("lazy", 1, 0);
  Stream* const s = stream();
  Event* const ready = event();
  ok(cuEventRecord(ready, s));
  EXPECT_EQ(cuEventQuery(ready), kNotReady);
  EXPECT_EQ(cuEventQuery(ready), kNotReady);
  while (cuEventQuery(ready) == kNotReady) {
    std::this_thread::yield();
  }
  EXPECT_EQ(fake_gpu_count("host_waits"), 0u);
}

TEST_F(Streams, DefaultStreamKeepsItsOrderWithBlockingStreamsOnly) {
  Stream* const blocking = stream(0);
  Stream* const free = stream();
  fake_gpu_hold(blocking);
  const Address device = allocate(1);
  ok(cuMemsetD8Async(device, 1, 1, blocking));
  ok(cuMemsetD8Async(device, 2, 1, nullptr));
  ok(cuMemsetD8Async(device, 3, 1, free));
  ok(cuStreamSynchronize(free));
  EXPECT_EQ(bytes_at(device, 1)[0], 3);
  EXPECT_EQ(cuStreamQuery(nullptr), kNotReady);
  fake_gpu_release(blocking);
  ok(cuStreamSynchronize(nullptr));
  EXPECT_EQ(bytes_at(device, 1)[0], 2);
}

TEST_F(Streams, EventsMeasureTimeUnlessTheyAreMadeWithout) {
  Stream* const s = stream();
  Event* const begin = event(0);
  Event* const end = event(0);
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kInvalidHandle);
  ok(cuEventRecord(begin, s));
  fake_gpu_hold(s);
  ok(cuEventRecord(end, s));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kNotReady);
  fake_gpu_release(s);
  ok(cuEventSynchronize(end));
  ok(cuEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 0);
  Event* const untimed = event();
  ok(cuEventRecord(untimed, s));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, untimed), kInvalidHandle);
}

TEST_F(Streams, DestroyedStreamFinishesItsWork) {
  Stream* const s = stream();
  Stream* const other = stream();
  Event* const ready = event();
  fake_gpu_hold(other);
  ok(cuEventRecord(ready, other));
  ok(cuStreamWaitEvent(s, ready, 0));
  const Address device = allocate(1);
  ok(cuMemsetD8Async(device, 9, 1, s));
  Event* const end = event();
  ok(cuEventRecord(end, s));
  ok(cuStreamDestroy_v2(s));
  EXPECT_EQ(cuStreamQuery(s), kInvalidHandle);
  fake_gpu_release(other);
  ok(cuEventSynchronize(end));
  EXPECT_EQ(bytes_at(device, 1)[0], 9);
}

TEST_F(Streams, EventOfAContextCoversAllOfItsStreams) {
  Stream* const first = stream();
  Stream* const second = stream();
  Event* const all = event();
  fake_gpu_hold(second);
  const Address device = allocate(1);
  ok(cuMemsetD8Async(device, 4, 1, second));
  ok(cuCtxRecordEvent(contexts_[0], all));
  ok(cuStreamSynchronize(first));
  EXPECT_EQ(cuEventQuery(all), kNotReady);
  ok(cuCtxWaitEvent(contexts_[0], all));
  EXPECT_EQ(cuStreamQuery(first), kNotReady);
  fake_gpu_release(second);
  ok(cuStreamSynchronize(first));
  EXPECT_EQ(bytes_at(device, 1)[0], 4);
}

TEST_F(Streams, QueuedFunctionsRunInOrder) {
  Stream* const s = stream();
  fake_gpu_time("random", 3, 200);
  std::vector<int> seen;
  struct Step {
    std::vector<int>* seen;
    int number;
  };
  std::vector<Step> steps;
  for (int i = 0; i < 10; ++i) {
    steps.push_back({&seen, i});
  }
  for (Step& step : steps) {
    ok(fake_gpu_enqueue(
        s, "a step",
        [](void* argument) {
          auto* const one = static_cast<Step*>(argument);
          one->seen->push_back(one->number);
        },
        &step));
  }
  ok(fake_gpu_drain(s));
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(fake_gpu_count("host_waits"), 0u);
  EXPECT_EQ(fake_gpu_count("launches"), 10u);
}

TEST_F(Streams, CallsAreCounted) {
  Stream* const s = stream();
  Event* const ready = event();
  const Address device = allocate(8);
  ok(cuMemsetD8Async(device, 0, 8, s));
  ok(cuMemcpyDtoDAsync_v2(device + 4, device, 4, s));
  ok(cuEventRecord(ready, s));
  ok(cuStreamWaitEvent(s, ready, 0));
  ok(cuEventSynchronize(ready));
  ok(cuStreamSynchronize(s));
  ok(cuStreamQuery(s));
  EXPECT_EQ(fake_gpu_count("memsets"), 1u);
  EXPECT_EQ(fake_gpu_count("copies"), 1u);
  EXPECT_EQ(fake_gpu_count("launches"), 2u);
  EXPECT_EQ(fake_gpu_count("event_records"), 1u);
  EXPECT_EQ(fake_gpu_count("stream_waits"), 1u);
  EXPECT_EQ(fake_gpu_count("host_waits"), 2u);
  EXPECT_EQ(fake_gpu_count("queries"), 1u);
  EXPECT_EQ(fake_gpu_count("allocations"), 1u);
  EXPECT_EQ(fake_gpu_count("live_allocations"), 1u);
  EXPECT_EQ(fake_gpu_count("refusals"), 0u);
  EXPECT_EQ(fake_gpu_count("no such counter"), UINT64_MAX);
}

TEST_F(Streams, StreamUnderCaptureIsNotRunAndNotWaitedFor) {
  Stream* const s = stream();
  const Address device = allocate(1);
  CaptureStatus status = kCaptureInvalidated;
  ok(cuStreamIsCapturing(s, &status));
  EXPECT_EQ(status, kCaptureNone);
  ok(cuStreamBeginCapture_v2(s, 0));
  ok(cuStreamIsCapturing(s, &status));
  EXPECT_EQ(status, kCaptureActive);
  ok(cuMemsetD8Async(device, 1, 1, s));
  EXPECT_EQ(fake_gpu_count("captured"), 1u);
  Event* const ready = event();
  ok(cuEventRecord(ready, s));
  EXPECT_EQ(cuEventQuery(ready), kCapturedEvent);
  void* graph = nullptr;
  ok(cuStreamEndCapture(s, &graph));
  ok(cuStreamSynchronize(s));
  EXPECT_EQ(bytes_at(device, 1)[0], 0xFF);

  ok(cuStreamBeginCapture_v2(s, 0));
  EXPECT_EQ(cuStreamSynchronize(s), kStreamCaptureUnsupported);
  ok(cuStreamIsCapturing(s, &status));
  EXPECT_EQ(status, kCaptureInvalidated);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), kStreamCaptureInvalidated);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), kStreamCaptureUnmatched);
}

TEST_F(Streams, ForbiddenStreamEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Stream* const s = stream();
  fake_gpu_forbid(s, "which a collective is being launched on");
  const Address device = allocate(1);
  EXPECT_DEATH(cuMemsetD8Async(device, 0, 1, s), "a memset on stream .* which a collective is being launched on");
  fake_gpu_permit(s);
  ok(cuMemsetD8Async(device, 0, 1, s));
}

}  // namespace
}  // namespace gpu_fake
