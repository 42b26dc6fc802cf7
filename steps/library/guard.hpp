// The border between C++ and C: no exception crosses it; its text is kept for flash_steps_last_error.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "steps/library/flash_steps.h"

namespace flash::library {

// No such step, or a dtype that the step does not take.
struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Keeps the text for this thread; allocates nothing, so it works when memory has run out.
void set_last_error(const char* text) noexcept;

// Runs work and gives the code for what it threw.
template <class Work> int guarded(Work&& work) noexcept {
    try {
        set_last_error("");
        work();
        return FLASH_OK;
    } catch (const std::invalid_argument& error) {
        set_last_error(error.what());
        return FLASH_BAD_ARGUMENT;
    } catch (const Unsupported& error) {
        set_last_error(error.what());
        return FLASH_UNSUPPORTED;
    } catch (const std::bad_alloc&) {
        set_last_error("out of memory");
        return FLASH_DEVICE_ERROR;
    } catch (const std::exception& error) {
        set_last_error(error.what());
        return FLASH_DEVICE_ERROR;
    } catch (...) {
        set_last_error("unknown error");
        return FLASH_DEVICE_ERROR;
    }
}

}  // namespace flash::library
