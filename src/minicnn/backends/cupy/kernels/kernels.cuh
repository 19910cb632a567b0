// All kernels but the regions.
#pragma once
#include "depthwise.cuh"
#include "pipelined.cuh"
#include "products.cuh"
#include "tensor.cuh"
#include "tensor_products.cuh"
