// The handshake of two workers, as a pure state machine over bytes: no socket, no clock. Both prove that they
// know the job's secret, by an HMAC over both sides' nonces, before anything else that was sent is decoded.
//
//   connector                          acceptor
//   hello {ranks, nonce}          ->                           (fixed size; says nothing secret)
//                                 <-  challenge {nonce, mac}   (mac: the acceptor knows the secret)
//   proof {mac}                   ->                           (mac: the connector knows it too)
//                                 <-  welcome {mac}
//
// Each MAC covers its role, the whole hello and the acceptor's nonce, so no message can be used twice, sent
// back, or moved to another connection. All messages have a fixed size: a stranger costs one small buffer.
// The reader takes exactly wanted() bytes from its socket: what follows the handshake may carry descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/hmac.h"

namespace farandole::transport {

enum class Channel : uint32_t { kControl = 1, kData = 2 };

struct Hello {
  Channel channel = Channel::kControl;
  uint64_t generation = 0;
  int32_t from = 0;
  int32_t to = 0;
  base::Digest world{};  // SHA-256 over the contacts of all ranks: both mean the same world
};

enum class Refusal : uint8_t {
  kNone,
  kRubbish,          // not one of us
  kOtherGeneration,  // one of us, but too early or too late
  kOtherWorld,       // one of us in the same generation, which was told another list of workers
  kSecret,           // it does not know the secret
};

class Handshake {
 public:
  enum class State : uint8_t {
    kGoing,
    kConvinced,  // connector only: the acceptor is genuine; prove() goes on
    kProven,     // both are genuine
    kRefused,    // see refusal(); send what feed() returned, if anything, and close
  };

  static constexpr size_t kLongestMessage = 96;

  // The connector's side; first() is what to send.
  static Handshake connecting(std::string secret, const Hello& hello);
  // The acceptor's side. `expected` is what it would say itself, `from` being its own rank; the side that connects
  // must come from a rank above it and below `size`.
  static Handshake accepting(std::string secret, const Hello& expected, int32_t size);

  // Bytes of the message that is waited for; 0 when none is.
  size_t wanted() const noexcept;
  // Takes exactly wanted() bytes and gives the answer to send, which may be empty.
  base::Bytes feed(std::span<const std::byte> message);
  base::Bytes first();
  base::Bytes prove();

  State state() const noexcept { return state_; }
  Refusal refusal() const noexcept { return refusal_; }
  // The connector's hello, once it came (acceptor) or as given (connector). It can be trusted once it is proven.
  const Hello& hello() const noexcept { return hello_; }

 private:
  enum class Stage : uint8_t { kStart, kHello, kChallenge, kProof, kWelcome, kEnd };

  Handshake(std::string secret, Stage stage) : secret_(std::move(secret)), stage_(stage) {}
  base::Bytes take_hello(std::span<const std::byte> message);
  base::Bytes take_challenge(std::span<const std::byte> message);
  base::Bytes take_proof(std::span<const std::byte> message);
  base::Bytes take_welcome(std::span<const std::byte> message);
  base::Bytes refuse(Refusal refusal);
  base::Digest mac(const char* role) const;

  std::string secret_;
  Stage stage_;
  State state_ = State::kGoing;
  Refusal refusal_ = Refusal::kNone;
  Hello hello_;
  int32_t size_ = 0;         // acceptor only
  Hello expected_;           // acceptor only
  base::Bytes hello_bytes_;  // as sent, with the connector's nonce
  base::Digest nonce_{};     // the acceptor's
};

}  // namespace farandole::transport
