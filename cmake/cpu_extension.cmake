# One object file per instruction set, each with its own flags; the choice is made at run time.
include(CheckCXXCompilerFlag)

set(VLLM_SOURCES csrc/bindings.cpp csrc/cpu/kernels_scalar.cpp)
set(VLLM_DEFINITIONS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(VLLM_AVX2_FLAGS -mavx2 -mfma -mf16c)
  set(VLLM_AVX512_FLAGS ${VLLM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's own AVX-512 header trips these (GCC bug 105593).
    list(APPEND VLLM_AVX512_FLAGS -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  list(APPEND VLLM_SOURCES csrc/cpu/kernels_avx2.cpp csrc/cpu/kernels_avx512.cpp)
  list(APPEND VLLM_DEFINITIONS VLLM_X86)
  set_source_files_properties(csrc/cpu/kernels_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${VLLM_AVX2_FLAGS}")
  set_source_files_properties(csrc/cpu/kernels_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${VLLM_AVX512_FLAGS}")
  check_cxx_compiler_flag(-mavx512bf16 VLLM_COMPILER_HAS_AVX512BF16)
  if(VLLM_COMPILER_HAS_AVX512BF16)
    list(APPEND VLLM_SOURCES csrc/cpu/kernels_avx512bf16.cpp)
    list(APPEND VLLM_DEFINITIONS VLLM_HAS_AVX512BF16)
    set_source_files_properties(csrc/cpu/kernels_avx512bf16.cpp PROPERTIES
      COMPILE_OPTIONS "${VLLM_AVX512_FLAGS};-mavx512bf16")
  endif()
endif()

nanobind_add_module(_C NB_STATIC NOMINSIZE ${VLLM_SOURCES})
target_compile_definitions(_C PRIVATE ${VLLM_DEFINITIONS})
target_include_directories(_C PRIVATE csrc)
# Sums keep their order (no -ffast-math); errno from sqrt and exp is never read.
target_compile_options(_C PRIVATE -O3 -fno-math-errno -Wall -Wextra)
target_link_libraries(_C PRIVATE OpenMP::OpenMP_CXX)
