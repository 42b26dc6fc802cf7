// The fiber of each thread: its stack, and the switches between it and the scheduler. Boost's fcontext layer
// is used directly because a faulty launch drops its fibers where they stand, without unwinding through
// kernel frames.
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "common/gpu/device.hpp"
#include "common/simt/machine.hpp"

// AddressSanitizer has to be told which stack is in use; where kHooks is true it is not there.
extern "C" {
void __asan_unpoison_memory_region(const volatile void* begin, std::size_t bytes);
void __sanitizer_start_switch_fiber(void** fake_stack, const void* stack, std::size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_stack, std::size_t* old_bytes);
}

namespace flash::simt {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {

constexpr std::size_t kGuard = 4096;  // a page that faults below each stack

struct {
    fcontext_t context = nullptr;
    const void* stack = nullptr;
    std::size_t stack_bytes = 0;
} scheduler;

// Used in last-in-first-out order, so a kernel without barriers runs all its threads on one warm stack.
std::vector<std::byte*> free_stacks;

std::byte* take_stack() {
    if (free_stacks.empty()) {
        void* room = mmap(nullptr, kStackBytes + kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        auto* stack = static_cast<std::byte*>(room) + kGuard;
        if (room == MAP_FAILED || mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0)
            throw gpu::DeviceError("the emulator found no memory for another thread's stack");
        return stack;
    }
    std::byte* stack = free_stacks.back();
    free_stacks.pop_back();
    if constexpr (!kHooks) __asan_unpoison_memory_region(stack, kStackBytes);
    return stack;
}

void fiber_main(transfer_t transfer) {
    scheduler.context = transfer.fctx;
    Thread& thread = *static_cast<Thread*>(transfer.data);
    if constexpr (!kHooks) __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_bytes);
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
    thread.stack = take_stack();
    // Stack tops are spread over the cache's sets; equal offsets would make all threads evict each other.
    const std::size_t color = static_cast<std::size_t>(thread.id % 64) * 320;
    thread.context = make_fcontext(thread.stack + kStackBytes - color, kStackBytes - color, fiber_main);
}

void drop_fiber(Thread& thread) {
    if (thread.stack != nullptr) free_stacks.push_back(std::exchange(thread.stack, nullptr));
}

// The two ends of a switch.
void switch_to_thread(Thread& thread) {
    void* fake_stack = nullptr;
    if constexpr (!kHooks) __sanitizer_start_switch_fiber(&fake_stack, thread.stack, kStackBytes);
    thread.context = jump_fcontext(thread.context, &thread).fctx;
    if constexpr (!kHooks) __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void switch_to_scheduler(Thread& thread) {
    void* fake_stack = nullptr;
    const bool returns = thread.state != State::kExited;
    if constexpr (!kHooks)
        __sanitizer_start_switch_fiber(returns ? &fake_stack : nullptr, scheduler.stack,
                                       scheduler.stack_bytes);
    scheduler.context = jump_fcontext(scheduler.context, &thread).fctx;
    if constexpr (!kHooks) __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

}  // namespace flash::simt
