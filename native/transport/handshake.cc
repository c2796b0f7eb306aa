#include "transport/handshake.h"

#include <cassert>
#include <cstring>
#include <string_view>

namespace farandole::transport {
namespace {

using base::Bytes;
using base::Digest;

constexpr uint64_t kMagic = 0x4c4f444e41524146;  // "FARANDOL"
constexpr uint32_t kVersion = 1;

constexpr size_t kHelloBytes = 8 + 4 + 4 + 8 + 4 + 4 + 32 + 32;
constexpr size_t kChallengeBytes = 32 + 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kWelcomeBytes = 32;
static_assert(kHelloBytes == Handshake::kLongestMessage);

// No role begins another one, so role and content cannot be taken for each other.
constexpr const char* kAcceptor = "farandole acceptor";
constexpr const char* kConnector = "farandole connector";
constexpr const char* kWelcome = "farandole welcome";

void append(Bytes& bytes, std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Digest digest_at(std::span<const std::byte> message, size_t offset) {
  Digest digest;
  std::memcpy(digest.data(), message.data() + offset, digest.size());
  return digest;
}

Bytes encode(const Hello& hello, const Digest& nonce) {
  base::Writer writer;
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(hello.channel);
  writer.put(hello.generation);
  writer.put(hello.from);
  writer.put(hello.to);
  Bytes bytes = writer.take();
  append(bytes, hello.world);
  append(bytes, nonce);
  return bytes;
}

// False when it is none.
bool decode(std::span<const std::byte> message, Hello& hello) {
  base::Reader reader(message);
  const bool ours = reader.get<uint64_t>() == kMagic && reader.get<uint32_t>() == kVersion;
  if (!ours) {
    return false;
  }
  hello.channel = reader.get<Channel>();
  hello.generation = reader.get<uint64_t>();
  hello.from = reader.get<int32_t>();
  hello.to = reader.get<int32_t>();
  hello.world = digest_at(message, 32);
  return hello.channel == Channel::kControl || hello.channel == Channel::kData;
}

}  // namespace

Handshake Handshake::connecting(std::string secret, const Hello& hello) {
  Handshake handshake(std::move(secret), Stage::kStart);
  handshake.hello_ = hello;
  return handshake;
}

Handshake Handshake::accepting(std::string secret, const Hello& expected, int32_t size) {
  Handshake handshake(std::move(secret), Stage::kHello);
  handshake.expected_ = expected;
  handshake.size_ = size;
  return handshake;
}

size_t Handshake::wanted() const noexcept {
  switch (stage_) {
    case Stage::kHello:
      return kHelloBytes;
    case Stage::kChallenge:
      return kChallengeBytes;
    case Stage::kProof:
      return kProofBytes;
    case Stage::kWelcome:
      return kWelcomeBytes;
    default:
      return 0;
  }
}

Bytes Handshake::feed(std::span<const std::byte> message) {
  assert(message.size() == wanted());
  switch (stage_) {
    case Stage::kHello:
      return take_hello(message);
    case Stage::kChallenge:
      return take_challenge(message);
    case Stage::kProof:
      return take_proof(message);
    default:
      return take_welcome(message);
  }
}

Bytes Handshake::first() {
  assert(stage_ == Stage::kStart);
  Digest nonce;
  base::fill_random(nonce);
  hello_bytes_ = encode(hello_, nonce);
  stage_ = Stage::kChallenge;
  return hello_bytes_;
}

Bytes Handshake::take_hello(std::span<const std::byte> message) {
  if (!decode(message, hello_) || hello_.to != expected_.from || hello_.from <= expected_.from ||
      hello_.from >= size_) {
    return refuse(Refusal::kRubbish);
  }
  if (hello_.generation != expected_.generation) {
    return refuse(Refusal::kOtherGeneration);
  }
  if (!base::equal_digests(hello_.world, expected_.world)) {
    return refuse(Refusal::kOtherWorld);
  }
  hello_bytes_.assign(message.begin(), message.end());
  base::fill_random(nonce_);
  stage_ = Stage::kProof;
  Bytes challenge(nonce_.begin(), nonce_.end());
  append(challenge, mac(kAcceptor));
  return challenge;
}

Bytes Handshake::take_challenge(std::span<const std::byte> message) {
  nonce_ = digest_at(message, 0);
  if (!base::equal_digests(digest_at(message, nonce_.size()), mac(kAcceptor))) {
    refuse(Refusal::kSecret);
    // A proof of zeros says "I do not believe you", so that the other side can name the reason as well.
    return Bytes(kProofBytes);
  }
  stage_ = Stage::kEnd;
  state_ = State::kConvinced;
  return {};
}

Bytes Handshake::prove() {
  assert(state_ == State::kConvinced);
  stage_ = Stage::kWelcome;
  state_ = State::kGoing;
  const Digest proof = mac(kConnector);
  return {proof.begin(), proof.end()};
}

Bytes Handshake::take_proof(std::span<const std::byte> message) {
  if (!base::equal_digests(digest_at(message, 0), mac(kConnector))) {
    return refuse(Refusal::kSecret);
  }
  stage_ = Stage::kEnd;
  state_ = State::kProven;
  const Digest welcome = mac(kWelcome);
  return {welcome.begin(), welcome.end()};
}

Bytes Handshake::take_welcome(std::span<const std::byte> message) {
  if (!base::equal_digests(digest_at(message, 0), mac(kWelcome))) {
    return refuse(Refusal::kSecret);
  }
  stage_ = Stage::kEnd;
  state_ = State::kProven;
  return {};
}

Bytes Handshake::refuse(Refusal refusal) {
  stage_ = Stage::kEnd;
  state_ = State::kRefused;
  refusal_ = refusal;
  return {};
}

Digest Handshake::mac(const char* role) const {
  const auto label = as_bytes(role);
  Bytes text(label.begin(), label.end());
  append(text, hello_bytes_);
  append(text, nonce_);
  return base::hmac_sha256(as_bytes(secret_), text);
}

}  // namespace farandole::transport
