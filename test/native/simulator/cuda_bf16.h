// In place of the toolkit's header where the host plays a kernel.
#pragma once
#include "cuda_words.h"
