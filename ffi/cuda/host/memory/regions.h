// Device memory that several ranks address: which allocations of this process its peers have mapped, under which region
// numbers (ExportedRegions), and where this process has mapped theirs (ImportedRegions).
//
// An allocation is shared once. Its owner lists it in its region directory. Each peer's mapping thread maps it for
// every device that it uses, enters the address in the table that kernels read, and confirms this in the directory.
// Only then does the owner launch a kernel that names the region, so a kernel never reads a number that its own table
// lacks. Entries never change, so graphs can be replayed. A mapping lives until its process ends.
#pragma once

#include <string>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/exported_regions.h"
#include "cuda/host/memory/imported_regions.h"
#include "cuda/host/memory/location.h"

namespace jaxring::cuda {

class Regions {
 public:
  // `process`: this process's number in the job.
  Regions(Gpu& gpu, int process) : process_(process), exports_(gpu, process), imports_(gpu, process) {}

  ExportedRegions& exports() { return exports_; }
  ImportedRegions& imports() { return imports_; }

  // What peers attach: the directory of this process, and the doorbell that they ring when they have listed memory.
  int directory_fd() const { return exports_.directory_fd(); }
  int doorbell_fd() const { return imports_.doorbell_fd(); }
  // Maps a peer's directory and doorbell. Later calls for the same peer do nothing.
  void Attach(int process, const std::string& directory_path, const std::string& doorbell_path);
  // Maps peers' memory for `device`, too, from now on.
  void Use(int device);

  // The address of a location of a process (which may be this one) for kernels of `device`. Waits until it is mapped.
  char* Resolve(int device, int process, Location location, Deadline deadline);
  // The table of the regions of a process (which may be this one), as kernels of `device` read it.
  const uint64_t* Table(int device, int process);

 private:
  const int process_;
  ExportedRegions exports_;
  ImportedRegions imports_;
};

}  // namespace jaxring::cuda
