// All kernels but the regions.
#pragma once
#include "depthwise.cuh"
#include "pipelined.cuh"
#include "sums.cuh"
#include "tensor.cuh"
#include "tensor_products.cuh"
