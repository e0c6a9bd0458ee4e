# The libraries that lab/datasets/ decodes with, from the system or from .vendor/ (see tools/scripts/vendor.sh):
#   LMS::spng    libspng          LMS::jpeg    libjpeg-turbo          LMS::nifti    nifti_clib
# LMS_STUDIES_IMAGES_MISSING: the packages of those that were not found.
include_guard(GLOBAL)
set(LMS_STUDIES_IMAGES_MISSING "")
set(lms_images "${PROJECT_SOURCE_DIR}/.vendor/images")

# lms_image_library(<name> <header> <package> <library>...): the target LMS::<name>.
function(lms_image_library name header package)
  string(TOUPPER "LMS_${name}" prefix)
  find_path(${prefix}_INCLUDE ${header} PATHS "${lms_images}/include" "${lms_images}/include/nifti"
            PATH_SUFFIXES nifti)
  set(libraries "")
  foreach(library IN LISTS ARGN)
    string(REGEX REPLACE "[^a-z0-9]" "" id "${library}")
    find_library(${prefix}_${id}_LIBRARY NAMES ${library} lib${library}.so.0 PATHS "${lms_images}/lib")
    mark_as_advanced(${prefix}_${id}_LIBRARY)
    if(${prefix}_${id}_LIBRARY)
      list(APPEND libraries "${${prefix}_${id}_LIBRARY}")
    else()
      set(libraries "")
      break()
    endif()
  endforeach()
  mark_as_advanced(${prefix}_INCLUDE)
  if(NOT ${prefix}_INCLUDE OR NOT libraries)
    set(LMS_STUDIES_IMAGES_MISSING ${LMS_STUDIES_IMAGES_MISSING} ${package} PARENT_SCOPE)
    return()
  endif()
  add_library(LMS::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(LMS::${name} SYSTEM INTERFACE "${${prefix}_INCLUDE}")
  target_link_libraries(LMS::${name} INTERFACE ${libraries})
endfunction()

lms_image_library(spng spng.h libspng-dev spng)
lms_image_library(jpeg jpeglib.h libjpeg-dev jpeg)
lms_image_library(nifti nifti2_io.h libnifti-dev nifti2 znz)
