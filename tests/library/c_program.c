/* The header is C, and a C program can call a step: two keys with equal scores share their weight. What the
 * backward says about a call without memory needs no device. */
#include <math.h>
#include <stdio.h>

#include "flash_steps.h"

int main(void) {
    float q[2] = {1, 2}, k[4] = {3, 4, 3, 4}, v[4] = {1, 10, 3, 30}, o[2] = {0, 0}, lse = 0;
    FlashForward call = {
        {q, {1, 1, 1, 2}, {2, 2, 2, 1}},
        {k, {1, 1, 2, 2}, {4, 4, 2, 1}},
        {v, {1, 1, 2, 2}, {4, 4, 2, 1}},
        {o, {1, 1, 1, 2}, {2, 2, 2, 1}},
        &lse,
        FLASH_FP32,
        FLASH_MASK_NONE,
        0,
        0.5f,
    };
    const int code = flash_steps_forward(3, &call, NULL);
    if (code != FLASH_OK) {
        printf("code %d: %s\n", code, flash_steps_last_error());
        return 1;
    }
    /* scores 0.5 * (1 * 3 + 2 * 4) = 5.5 twice: O is the mean of V's rows, L = 5.5 + ln 2 */
    if (fabsf(o[0] - 2) > 1e-6f || fabsf(o[1] - 20) > 1e-5f || fabsf(lse - 6.19314718f) > 1e-6f) {
        printf("o = (%g, %g), lse = %.8g\n", (double)o[0], (double)o[1], (double)lse);
        return 1;
    }
    call.scale = 0;
    if (flash_steps_forward(3, &call, NULL) != FLASH_BAD_ARGUMENT) return 1;
    printf("%s\n", flash_steps_last_error());

    const FlashTensor query = {NULL, {1, 4, 100, 64}, {25600, 6400, 64, 1}},
                      key = {NULL, {1, 2, 50, 64}, {6400, 3200, 64, 1}};
    FlashBackward gradients = {
        sizeof gradients, query,           key, key,    query, NULL, query, query, key, key, NULL, 0,
        FLASH_BF16,       FLASH_MASK_NONE, 0,   0.125f, 1};
    /* two numbers for each of 100 queries, padded to 128, of four heads */
    if (flash_steps_backward_workspace_bytes(9, &gradients) != 2 * 128 * 4 * 4) return 1;
    if (flash_steps_backward(9, &gradients, NULL) != FLASH_BAD_ARGUMENT) return 1;
    printf("%s\n", flash_steps_last_error());
    return 0;
}
