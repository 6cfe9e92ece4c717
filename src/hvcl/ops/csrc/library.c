/* What Python asks when it loads the library. */
#include "hvcl.h"

/* Sizes of the structures, in the order of the header; 0 after the last */
int64_t structure_size(int64_t number)
{
    static const int64_t sizes[] = { sizeof(Products), sizeof(Plain), sizeof(Experts), sizeof(Dense), sizeof(Stack), sizeof(Conv), sizeof(Chain), sizeof(Held), sizeof(Rows) };
    return number >= 0 && number < (int64_t)(sizeof sizes / sizeof *sizes) ? sizes[number] : 0;
}

const char *compiled_by(void) { return __VERSION__; }
