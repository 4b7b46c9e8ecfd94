# SPDX-License-Identifier: BSD-3-Clause
import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Deltapipe(CMakePackage, CudaPackage):
    """Fine-tunes GPT-2 over pipelines of machines joined by slow networks."""

    # The checkout that this recipe is part of.
    homepage = git = pathlib.Path(__file__).resolve().parents[5].as_uri()

    license("BSD-3-Clause")

    version("main", branch="main")

    variant("openmp", default=True, description="Threads of OpenMP instead of deltapipe's own")
    variant("onednn", default=False, description="Products in bf16 by oneDNN, on processors")
    variant("analysis", default=False, description="What the scripts need: h5py and matplotlib")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10:")
    depends_on("openblas")
    depends_on("nlohmann-json@3.9:")
    depends_on("tomlplusplus@3:")
    depends_on("cli11@2:")
    depends_on("fmt@8:")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("libpng")
    depends_on("libjpeg-turbo")
    depends_on("sentencepiece")
    depends_on("utf8proc")
    depends_on("onednn", when="+onednn")
    depends_on("random123", type="test")
    depends_on("catch2", type="test")
    with when("+analysis"):
        depends_on("python", type="run")
        depends_on("py-h5py", type="run")
        depends_on("py-matplotlib", type="run")

    # The program computes with the Kokkos that it is given.
    depends_on("kokkos@4:")
    depends_on("kokkos-kernels@4: +blas")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos~openmp+serial", when="~openmp")
    with when("+cuda"):
        depends_on("cuda@12:")
        depends_on("kokkos+cuda+wrapper")
        depends_on("kokkos-kernels+cuda+cublas")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"kokkos cuda_arch={arch}", when=f"cuda_arch={arch}")
        conflicts("cuda_arch=none", msg="name one, as in +cuda cuda_arch=90")
        conflicts("+onednn", msg="oneDNN is for processors")

    def cmake_args(self):
        args = [
            # Spack's compiler wrapper compiles for the processor of the spec's target.
            self.define("DELTAPIPE_NATIVE", False),
            self.define("DELTAPIPE_WERROR", False),
            self.define_from_variant("DELTAPIPE_ONEDNN", "onednn"),
            self.define("BUILD_TESTING", self.run_tests),
            self.define("Kokkos_ROOT", self.spec["kokkos"].prefix),
            self.define("KokkosKernels_ROOT", self.spec["kokkos-kernels"].prefix),
            self.define("HDF5_ROOT", self.spec["hdf5"].prefix),
            self.define("OpenBLAS_ROOT", self.spec["openblas"].prefix),
            self.define("XXHASH_ROOT", self.spec["xxhash"].prefix),
            self.define("ZLIB_ROOT", self.spec["zlib-api"].prefix),
            self.define("PNG_ROOT", self.spec["libpng"].prefix),
            self.define("JPEG_ROOT", self.spec["libjpeg-turbo"].prefix),
            self.define("SENTENCEPIECE_ROOT", self.spec["sentencepiece"].prefix),
            self.define("UTF8PROC_ROOT", self.spec["utf8proc"].prefix),
            self.define("MPI_C_COMPILER", self.spec["mpi"].mpicc),
        ]
        if self.spec.satisfies("+onednn"):
            args.append(self.define("ONEDNN_ROOT", self.spec["onednn"].prefix))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        return args
