// Benchmark works natively: one command a line on standard input, one line of JSON for each on standard output, so that
// bench/lib/native.mjs can time it in turn with contestants of other kinds.
//
//   create <spec>          {"id":0,"output":[…]}     output after one run
//   run <id> <iterations>  {"ms":1.5}          milliseconds of processor time
//   destroy <id>           {}
#include <ctime>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "work.h"

int main() {
  std::vector<std::unique_ptr<needle3::bench::Work>> works;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    size_t id = 0;
    words >> command;
    if (command == "create") {
      auto work = needle3::bench::createWork(line.substr(command.size() + 1));
      if (work == nullptr) {
        std::cout << R"({"error":"no such work"})" << std::endl;
        continue;
      }
      work->run(1);
      std::cout << R"({"id":)" << works.size() << R"(,"output":[)" << std::setprecision(9);
      for (size_t i = 0; i < work->output().size(); ++i) std::cout << (i == 0 ? "" : ",") << work->output()[i];
      std::cout << "]}" << std::endl;
      works.push_back(std::move(work));
    } else if (command == "run") {
      uint32_t iterations = 0;
      words >> id >> iterations;
      const std::clock_t start = std::clock();
      works[id]->run(iterations);
      const double elapsed = static_cast<double>(std::clock() - start) * 1000 / CLOCKS_PER_SEC;
      std::cout << R"({"ms":)" << std::setprecision(9) << elapsed << "}" << std::endl;
    } else {
      words >> id;
      works[id].reset();
      std::cout << "{}" << std::endl;
    }
  }
  return 0;
}
