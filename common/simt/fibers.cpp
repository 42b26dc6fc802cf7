// The fiber of each thread: its stack, and the switches between it and the scheduler. Boost's fcontext layer
// is used directly because a faulty launch drops its fibers where they stand, without unwinding through
// kernel frames.
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "common/gpu/device.hpp"
#include "common/simt/machine.hpp"

#if defined(FLASH_STEPS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace flash::simt {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {

// Stacks are reused in last-in-first-out order, so a kernel without barriers runs all its threads on one warm
// stack.
class StackPool {
  public:
    std::byte* take() {
        if (free_.empty()) grow();
        std::byte* stack = free_.back();
        free_.pop_back();
#if defined(FLASH_STEPS_ASAN)
        __asan_unpoison_memory_region(stack, kStackBytes);
#endif
        return stack;
    }
    void give(std::byte* stack) {
        free_.push_back(stack);
    }

  private:
    static constexpr std::size_t kGuard = 4096;  // a page that faults below each stack

    void grow() {
        void* room = mmap(nullptr, kStackBytes + kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        auto* stack = static_cast<std::byte*>(room) + kGuard;
        if (room == MAP_FAILED || mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0)
            throw gpu::DeviceError("the emulator found no memory for another thread's stack");
        free_.push_back(stack);
    }

    std::vector<std::byte*> free_;
};
StackPool stacks;

void fiber_main(transfer_t transfer) {
    machine.scheduler = transfer.fctx;
    Thread& thread = *static_cast<Thread*>(transfer.data);
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &machine.asan_scheduler_stack, &machine.asan_scheduler_bytes);
#endif
    // The arguments stand at the low end of the stack: the kernel reads them as its own stack, uncounted.
    std::memcpy(thread.stack, machine.launch.arguments, machine.launch.argument_bytes);
    in_kernel = true;
    machine.launch.call(thread.stack);
    in_kernel = false;
    thread.state = State::kExited;
    switch_to_scheduler(thread);
}

}  // namespace

void start_fiber(Thread& thread) {
    thread.stack = stacks.take();
    // Stack tops are spread over the cache's sets; equal offsets would make all threads evict each other.
    const std::size_t color = static_cast<std::size_t>(thread.id % 64) * 320;
    thread.context = make_fcontext(thread.stack + kStackBytes - color, kStackBytes - color, fiber_main);
}

void drop_fiber(Thread& thread) {
    if (thread.stack != nullptr) stacks.give(std::exchange(thread.stack, nullptr));
}

// The two ends of a switch. AddressSanitizer has to be told which stack is in use.
void switch_to_thread(Thread& thread) {
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_start_switch_fiber(&machine.asan_fake_stack, thread.stack, kStackBytes);
#endif
    thread.context = jump_fcontext(thread.context, &thread).fctx;
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_finish_switch_fiber(machine.asan_fake_stack, nullptr, nullptr);
#endif
}

void switch_to_scheduler(Thread& thread) {
#if defined(FLASH_STEPS_ASAN)
    const bool returns = thread.state != State::kExited;
    __sanitizer_start_switch_fiber(returns ? &thread.asan_fake_stack : nullptr, machine.asan_scheduler_stack,
                                   machine.asan_scheduler_bytes);
#endif
    machine.scheduler = jump_fcontext(machine.scheduler, &thread).fctx;
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_finish_switch_fiber(thread.asan_fake_stack, nullptr, nullptr);
#endif
}

}  // namespace flash::simt
